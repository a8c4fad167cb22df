#!/usr/bin/env python3
"""Writes kv_events.txt: one KV-event payload a line, `name hex`, as engines' publishers encode it.

Needs nothing but Python. The packer below follows the MessagePack specification and picks the
shortest form of each value, as the engines' encoder does. Run it in this folder and compare:

    ./make_kv_events.py | diff - kv_events.txt
"""

import struct


def pack(value):
    if value is None:
        return b"\xc0"
    if value is True or value is False:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return pack_int(value)
    if isinstance(value, str):
        raw = value.encode()
        head = bytes([0xA0 | len(raw)]) if len(raw) < 32 else b"\xd9" + bytes([len(raw)])
        return head + raw
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, (list, tuple)):
        count = len(value)
        head = bytes([0x90 | count]) if count < 16 else b"\xdc" + struct.pack(">H", count)
        return head + b"".join(pack(item) for item in value)
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(
            pack(key) + pack(item) for key, item in value.items()
        )
    raise TypeError(type(value))


def pack_int(value):
    if 0 <= value < 0x80:
        return bytes([value])
    if -0x20 <= value < 0:
        return struct.pack("b", value)
    for bound, code, form in ((1 << 8, 0xCC, ">B"), (1 << 16, 0xCD, ">H"), (1 << 32, 0xCE, ">I")):
        if 0 <= value < bound:
            return bytes([code]) + struct.pack(form, value)
    if value >= 0:
        return b"\xcf" + struct.pack(">Q", value)
    for bound, code, form in ((1 << 7, 0xD0, ">b"), (1 << 15, 0xD1, ">h"), (1 << 31, 0xD2, ">i")):
        if -bound <= value:
            return bytes([code]) + struct.pack(form, value)
    return b"\xd3" + struct.pack(">q", value)


STORED = ["BlockStored", [7001, 7002], 7000, [11, 12, 13, 300, 70000, 16], 3, None, "GPU"]
TIME = 1234.5

PAYLOADS = {
    # The array form: a store, its removal, a clear.
    "array_store": [TIME, [STORED], 0],
    "array_remove": [TIME, [["BlockRemoved", [7002, 7001], "GPU"]], 0],
    "array_clear": [TIME, [["AllBlocksCleared"]], None],
    # The map form of the same store, its keys in another order, and one key of tomorrow.
    "map_store": [
        TIME,
        [
            {
                "type": "BlockStored",
                "future": {"deep": [1, [2, [3]]]},
                "token_ids": [11, 12, 13, 300, 70000, 16],
                "block_hashes": [7001, 7002],
                "parent_block_hash": 7000,
                "block_size": 3,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        ],
        0,
    ],
    # The batch as a map.
    "map_batch": {"ts": TIME, "events": [STORED], "data_parallel_rank": 3},
    # Hashes over the whole 64-bit range, of either sign, and as digests.
    "wide_hashes": [
        TIME,
        [["BlockRemoved", [2**63 + 5, 2**64 - 1, -1, -(2**63), -200, -40000], "GPU"]],
        0,
    ],
    "byte_hashes": [TIME, [["BlockRemoved", [bytes(range(32)), b"\x01\x02"], "GPU"]], 0],
    # Everything up to the fixed tail, and elements beyond it.
    "long_tail": [
        TIME,
        [STORED + [None, None, 2, "mla_attention", None, "LOCAL", "engine", "later", {"x": 1}]],
        0,
        "later",
    ],
    # Pairs of neighbouring tokens.
    "pairs": [
        TIME,
        [["BlockStored", [7001], None, [[11, 12], [12, 13], [13, 14]], 3, None, None]],
        0,
    ],
    # A salt and an image in the extra keys, an adapter by name.
    "keyed": [
        TIME,
        [
            [
                "BlockStored",
                [7001, 7002],
                None,
                [1, 2, 3, 4, 5, 6],
                3,
                4,
                "GPU",
                "poet",
                [["poet", "tenant"], ["poet", ["ab" * 32, 5]]],
            ]
        ],
        0,
    ],
}

if __name__ == "__main__":
    for name, payload in PAYLOADS.items():
        print(name, pack(payload).hex())
