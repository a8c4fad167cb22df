//! What the tests of several rooms need; it is not built into the crate.

use std::hash::{BuildHasher, RandomState};

use rand::SeedableRng;
use rand::rngs::SmallRng;

/// A generator with a new seed, which it prints: put that in its place to see a failure again.
pub(crate) fn seeded(what: &str) -> SmallRng {
    let seed = RandomState::new().hash_one(what);
    println!("{what}: seed {seed}");
    SmallRng::seed_from_u64(seed)
}
