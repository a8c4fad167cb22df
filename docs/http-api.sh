#!/usr/bin/env bash
# Walks through the selection service over HTTP with curl: register, select, reserve, complete, free.
# Usage: docs/http-api.sh [URL]    (default http://localhost:8092; needs bash and curl)
# It expects a service without workers, prints every call and its answer, and stops at the first surprise.
set -euo pipefail
url="${1:-http://localhost:8092}"
auth=()
if [ -n "${TOKEN:-}" ]; then auth=(-H "authorization: Bearer $TOKEN"); fi

# call STATUS METHOD PATH [BODY]: one request that must be answered with STATUS.
call() {
  local status="$1" method="$2" path="$3" answer
  local arguments=(-sS -X "$method" "$url$path" -w '\n%{http_code}' "${auth[@]}")
  if [ $# -gt 3 ]; then arguments+=(-H 'content-type: application/json' -d "$4"); fi
  printf '\n$ curl -X %s %s%s%s\n' "$method" "$url" "$path" "${4:+ -d '$4'}"
  answer="$(curl "${arguments[@]}")"
  printf '%s  %s\n' "${answer##*$'\n'}" "${answer%$'\n'*}"
  if [ "${answer##*$'\n'}" != "$status" ]; then
    echo "expected $status" >&2
    exit 1
  fi
}

echo "# The process lives, but there is no worker yet."
call 200 GET /health
call 503 GET /ready

echo; echo "# Two workers; the second is corrected afterwards."
call 201 POST /workers '{"worker_id": 1, "model_name": "model", "endpoint": "http://10.0.0.1:8000", "block_size": 16}'
call 201 POST /workers '{"worker_id": 2, "model_name": "model", "block_size": 16}'
call 200 PATCH /workers/2 '{"endpoint": "http://10.0.0.2:8000"}'
call 200 GET '/workers?model_name=model'
call 200 GET /ready

echo; echo "# Select and reserve in one call, then tell how the request goes on."
call 200 POST /select_and_reserve '{"selection_id": "one", "model_name": "model", "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}'
call 409 POST /select_and_reserve '{"selection_id": "one", "model_name": "model", "token_ids": [1]}'
call 200 GET '/loads?model_name=model'
call 200 POST /reservations/one/prefill_complete
call 200 POST /reservations/one/output_block '{"decay_fraction": 0.5}'
call 200 DELETE /reservations/one
call 404 DELETE /reservations/one

echo; echo "# Select first, reserve later: the selection waits under its id, once."
hashes='"block_hashes": [11, 12, 13, 14, 15, 16, 17, 18], "sequence_hashes": [21, 22, 23, 24, 25, 26, 27, 28], "isl_tokens": 512'
call 200 POST /select '{"selection_id": "two", "model_name": "model", '"$hashes"'}'
call 201 POST /reservations '{"selection_id": "two", "model_name": "model"}'
call 404 POST /reservations '{"selection_id": "two", "model_name": "model"}'

echo; echo "# Or say all of it: the worker is the caller's choice."
call 201 POST /reservations '{"selection_id": "three", "model_name": "model", "worker_id": 1, "dp_rank": 0, "sequence_hashes": [21, 22, 23], "isl_tokens": 48, "effective_prefill_tokens": 32}'

echo; echo "# What a prompt would meet, without choosing."
call 200 POST /potential_loads '{"model_name": "model", '"$hashes"'}'
call 200 POST /overlap_scores '{"model_name": "model", '"$hashes"'}'

echo; echo "# What is known of every cache, for a replica that starts: its --indexer-peers names this service."
call 200 GET /dump

echo; echo "# A mistake is named, by code and field."
call 400 POST /select '{"selection_id": "four", "model_name": "model", "token_ids": [1, -2]}'

echo; echo "# A worker that leaves takes its load along; its reservations still end once."
call 200 DELETE /workers/1
call 200 DELETE /workers/2
call 200 DELETE /reservations/two
call 200 DELETE /reservations/three
call 200 GET /loads

echo; echo "done"
