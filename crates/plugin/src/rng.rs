//! A small seeded generator, so that a policy's chance can be replayed from the seed of its request.
//!
//! It never reads a clock or the system's randomness, and is not for secrets.

use crate::identity::WorkerWithDpRank;

/// The odd constant of Weyl's sequence that splitmix64 steps by: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A splitmix64 generator: the same seed yields the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// Generator of `seed`. Every seed is as good as any other, 0 included.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Generator of `seed` for one worker: draws of different workers are independent, and do not depend on the order in
    /// which the workers are asked.
    pub const fn for_worker(seed: u64, worker: WorkerWithDpRank) -> Self {
        let of_seed = mix(seed.wrapping_add(STEP));
        let of_worker = mix(of_seed ^ worker.worker_id);
        Self::new(mix(of_worker ^ worker.dp_rank as u64))
    }

    /// The next number, uniform over all of `u64`.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// The next number strictly between 0 and 1, uniform in steps of 2^-52.
    #[expect(clippy::cast_precision_loss, reason = "52 bits fit an f64 exactly")]
    pub fn next_unit(&mut self) -> f64 {
        const STEPS: f64 = (1_u64 << 52) as f64;
        ((self.next_u64() >> 12) as f64 + 0.5) / STEPS
    }

    /// The next number below `bound`, uniform (by widening multiplication; the bias is under `bound` / 2^64). 0 where
    /// `bound` is 0.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the high half of a product with `bound` is below `bound`"
    )]
    pub const fn below(&mut self, bound: usize) -> usize {
        ((self.next_u64() as u128 * bound as u128) >> 64) as usize
    }
}

/// The finaliser of splitmix64: a bijection under which near inputs have unrelated outputs.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published reference output of splitmix64 for the seed 1234567.
    #[test]
    fn it_yields_the_reference_sequence() {
        let mut rng = SeededRng::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn unit_draws_never_touch_0_or_1() {
        let mut rng = SeededRng::new(9);
        assert!((0..10_000).all(|_| (f64::MIN_POSITIVE..1.0).contains(&rng.next_unit())));
    }

    #[test]
    fn bounded_draws_stay_below_the_bound_and_reach_every_value() {
        let mut rng = SeededRng::new(3);
        let mut seen = [0_u32; 7];
        for _ in 0..7_000 {
            seen[rng.below(7)] += 1;
        }
        assert!(
            seen.iter().all(|&count| (800..1_200).contains(&count)),
            "{seen:?}"
        );
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn draws_of_a_worker_depend_on_seed_id_and_rank() {
        let draw = |seed, id, rank| {
            SeededRng::for_worker(seed, WorkerWithDpRank::new(id, rank)).next_u64()
        };
        let all = [draw(1, 1, 0), draw(1, 1, 1), draw(1, 2, 0), draw(2, 1, 0)];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(draw(1, 1, 0), all[0]);
    }
}
