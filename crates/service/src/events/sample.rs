//! Builds `MessagePack` payloads for tests; it is no part of the product.

#[path = "../../tests/it/recording.rs"]
pub(super) mod recording;

use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;

/// A value to encode.
#[derive(Clone, Debug)]
pub(super) enum V {
    Nil,
    Int(i64),
    Big(u64),
    Float(f64),
    Str(String),
    Bin(Vec<u8>),
    List(Vec<V>),
    Map(Vec<(&'static str, V)>),
}

impl From<u32> for V {
    fn from(value: u32) -> Self {
        Self::Big(u64::from(value))
    }
}

impl From<&str> for V {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}

impl<T: Into<V>> From<Vec<T>> for V {
    fn from(values: Vec<T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<V>> From<Option<T>> for V {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Nil, Into::into)
    }
}

impl V {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.write(&mut out);
        Bytes::from(out)
    }

    fn write(&self, out: &mut Vec<u8>) {
        use rmp::encode;
        let count = |len: usize| u32::try_from(len).unwrap();
        match self {
            Self::Nil => encode::write_nil(out).unwrap(),
            Self::Int(value) => {
                encode::write_sint(out, *value).unwrap();
            }
            Self::Big(value) => {
                encode::write_uint(out, *value).unwrap();
            }
            Self::Float(value) => encode::write_f64(out, *value).unwrap(),
            Self::Str(text) => encode::write_str(out, text).unwrap(),
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

/// A batch payload without a rank.
pub(super) fn batch(events: Vec<V>) -> Bytes {
    V::List(vec![V::Float(1.5), V::List(events), V::Nil]).encode()
}

pub(super) fn batch_of_rank(dp_rank: u32, events: Vec<V>) -> Bytes {
    V::List(vec![V::Float(1.5), V::List(events), dp_rank.into()]).encode()
}

/// The array form of a store on the device, up to the medium.
pub(super) fn stored(
    hashes: &[u32],
    parent: Option<u32>,
    tokens: &[u32],
    block_size: u32,
) -> Vec<V> {
    vec![
        "BlockStored".into(),
        hashes.to_vec().into(),
        parent.into(),
        tokens.to_vec().into(),
        block_size.into(),
        V::Nil,
        "GPU".into(),
    ]
}

pub(super) fn removed(hashes: &[u32]) -> V {
    V::List(vec![
        "BlockRemoved".into(),
        hashes.to_vec().into(),
        "GPU".into(),
    ])
}

pub(super) fn cleared() -> V {
    V::List(vec!["AllBlocksCleared".into()])
}

/// Every payload that was recorded from a publisher.
pub(super) fn recorded_payloads() -> Vec<Vec<u8>> {
    const TITLES: [&str; 4] = [
        "vllm 0.33.0 rank 0, numbers",
        "vllm 0.33.0 rank 1, digests",
        "sglang 0.5.23 rank 0",
        "sglang 0.5.23 rank 1, bigrams",
    ];
    let live = TITLES
        .iter()
        .flat_map(|title| recording::recording(title).live);
    live.map(|frames| frames[2].to_vec()).collect()
}

/// A payload as it may come from a broken publisher: cut, or with bits, bytes and stretches changed.
pub(super) fn damaged(random: &mut StdRng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = corpus[random.random_range(0..corpus.len())].clone();
    if random.random_bool(0.2) {
        payload.truncate(random.random_range(0..=payload.len()));
    }
    for _ in 0..random.random_range(1..6) {
        if payload.is_empty() {
            break;
        }
        let at = random.random_range(0..payload.len());
        let to = random.random_range(at..payload.len().min(at + 40));
        match random.random_range(0..5) {
            0 => payload[at] ^= 1 << random.random_range(0..8),
            1 => payload[at] = random.random(),
            2 => drop(payload.drain(at..to)),
            3 => {
                let stretch = payload[at..to].to_vec();
                let into = random.random_range(0..=payload.len());
                payload.splice(into..into, stretch);
            }
            _ => {
                let other = &corpus[random.random_range(0..corpus.len())];
                let from = random.random_range(0..other.len());
                payload.splice(at..to, other[from..].iter().copied().take(60));
            }
        }
    }
    payload
}
