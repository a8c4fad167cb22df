//! `MessagePack` values, and the events of engines in every form that they are sent in.

use bytes::Bytes;

/// A value to encode.
#[derive(Clone, Debug)]
pub(crate) enum V {
    Nil,
    Int(i64),
    Big(u64),
    Float(f64),
    Text(&'static str),
    Bin(Vec<u8>),
    List(Vec<V>),
    Map(Vec<(&'static str, V)>),
}

/// How an engine writes its events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    pub(crate) map: bool,
    pub(crate) names: Names,
}

/// How an engine writes the names of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names {
    Unsigned,
    Signed,
    /// 32 bytes, of which the last eight are the number.
    Digest,
}

/// The form that the other tests use.
pub(crate) const ARRAYS: Dialect = Dialect {
    map: false,
    names: Names::Unsigned,
};

/// Every form.
pub(crate) fn dialects() -> impl Iterator<Item = Dialect> {
    let names = [Names::Unsigned, Names::Signed, Names::Digest];
    let forms = [false, true].into_iter();
    forms.flat_map(move |map| names.into_iter().map(move |names| Dialect { map, names }))
}

/// A store of blocks; what is not set is nil.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) names: Vec<u64>,
    pub(crate) parent: Option<u64>,
    pub(crate) tokens: V,
    pub(crate) block_size: V,
    pub(crate) lora_id: V,
    pub(crate) medium: V,
    pub(crate) lora_name: V,
    pub(crate) extra_keys: V,
    pub(crate) group: V,
    pub(crate) kind: V,
}

/// A removal of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Remove {
    pub(crate) names: Vec<u64>,
    pub(crate) medium: V,
    pub(crate) group: V,
    pub(crate) left: V,
}

impl From<u32> for V {
    fn from(value: u32) -> Self {
        Self::Big(value.into())
    }
}

impl V {
    pub(crate) fn numbers(values: impl IntoIterator<Item = u32>) -> Self {
        Self::List(values.into_iter().map(Self::from).collect())
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.write(&mut out);
        out.into()
    }

    fn write(&self, out: &mut Vec<u8>) {
        use rmp::encode;
        let count = |length: usize| u32::try_from(length).unwrap();
        match self {
            Self::Nil => encode::write_nil(out).unwrap(),
            Self::Int(value) => drop(encode::write_sint(out, *value).unwrap()),
            Self::Big(value) => drop(encode::write_uint(out, *value).unwrap()),
            Self::Float(value) => encode::write_f64(out, *value).unwrap(),
            Self::Text(text) => encode::write_str(out, text).unwrap(),
            Self::Bin(bytes) => encode::write_bin(out, bytes).unwrap(),
            Self::List(values) => {
                encode::write_array_len(out, count(values.len())).unwrap();
                for value in values {
                    value.write(out);
                }
            }
            Self::Map(pairs) => {
                encode::write_map_len(out, count(pairs.len())).unwrap();
                for (key, value) in pairs {
                    encode::write_str(out, key).unwrap();
                    value.write(out);
                }
            }
        }
    }
}

impl Dialect {
    pub(crate) fn name(self, name: u64) -> V {
        match self.names {
            Names::Unsigned => V::Big(name),
            Names::Signed => V::Int(name.cast_signed()),
            Names::Digest => {
                let mut digest = vec![0xa5; 24];
                digest.extend(name.to_be_bytes());
                V::Bin(digest)
            }
        }
    }

    fn all(self, names: &[u64]) -> V {
        V::List(names.iter().map(|name| self.name(*name)).collect())
    }

    pub(crate) fn store(self, store: Store) -> V {
        let parent = store.parent.map_or(V::Nil, |parent| self.name(parent));
        self.event(
            "BlockStored",
            vec![
                ("block_hashes", self.all(&store.names)),
                ("parent_block_hash", parent),
                ("token_ids", store.tokens),
                ("block_size", store.block_size),
                ("lora_id", store.lora_id),
                ("medium", store.medium),
                ("lora_name", store.lora_name),
                ("extra_keys", store.extra_keys),
                ("group_idx", store.group),
                ("kv_cache_spec_kind", store.kind),
            ],
        )
    }

    pub(crate) fn remove(self, remove: Remove) -> V {
        self.event(
            "BlockRemoved",
            vec![
                ("block_hashes", self.all(&remove.names)),
                ("medium", remove.medium),
                ("group_idx", remove.group),
                ("remaining_copy_counts", remove.left),
            ],
        )
    }

    pub(crate) fn clear(self) -> V {
        self.event("AllBlocksCleared", vec![])
    }

    fn event(self, tag: &'static str, fields: Vec<(&'static str, V)>) -> V {
        if self.map {
            let mut pairs = vec![("type", V::Text(tag))];
            pairs.extend(fields);
            return V::Map(pairs);
        }
        let mut elements = vec![V::Text(tag)];
        elements.extend(fields.into_iter().map(|(_, value)| value));
        while let Some(V::Nil) = elements.last() {
            elements.pop();
        }
        V::List(elements)
    }
}

/// A store of whole blocks of 4 tokens on the device.
pub(crate) fn stored(names: &[u64], parent: Option<u64>, tokens: &[u32]) -> Store {
    Store {
        names: names.to_vec(),
        parent,
        tokens: V::numbers(tokens.iter().copied()),
        block_size: V::Int(4),
        lora_id: V::Nil,
        medium: V::Text("GPU"),
        lora_name: V::Nil,
        extra_keys: V::Nil,
        group: V::Nil,
        kind: V::Nil,
    }
}

/// A removal from the device.
pub(crate) fn removed(names: &[u64]) -> Remove {
    Remove {
        names: names.to_vec(),
        medium: V::Text("GPU"),
        group: V::Nil,
        left: V::Nil,
    }
}

/// A batch for this rank, or for whichever rank the socket is.
pub(crate) fn batch(dp_rank: Option<u32>, events: Vec<V>) -> Bytes {
    let dp_rank = dp_rank.map_or(V::Nil, V::from);
    V::List(vec![V::Float(1.5), V::List(events), dp_rank]).encode()
}
