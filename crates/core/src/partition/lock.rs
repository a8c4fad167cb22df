//! Takes a lock that others hold briefly, awake at first; whose lock it is, it does not know.

use std::hint::spin_loop;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

/// How often a lock is tried before its taker sleeps: some twenty microseconds, which is longer than an
/// event or a lookup holds it. To sleep and be woken takes longer than that.
const TRIES: usize = 1_000;

/// Tries to take a lock for a while, then waits for it. One whose holder panicked is taken all the same.
pub(super) fn take<Guard>(
    mut try_take: impl FnMut() -> TryLockResult<Guard>,
    wait: impl FnOnce() -> LockResult<Guard>,
) -> Guard {
    for _ in 0..TRIES {
        match try_take() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => spin_loop(),
        }
    }
    wait().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_lock_that_is_let_go_soon_is_not_waited_for() {
        let mut tries = 0;
        let guard = take(
            || {
                tries += 1;
                if tries < TRIES {
                    Err(TryLockError::WouldBlock)
                } else {
                    Ok(tries)
                }
            },
            || panic!("it slept"),
        );
        assert_eq!(guard, TRIES);
    }

    #[test]
    fn a_lock_that_is_held_for_long_is_waited_for() {
        let mut tries = 0;
        let guard = take(
            || {
                tries += 1;
                Err(TryLockError::WouldBlock)
            },
            || Ok("in the end"),
        );
        assert_eq!((guard, tries), ("in the end", TRIES));
    }

    #[test]
    fn a_lock_whose_holder_panicked_is_taken() {
        let lock = std::sync::RwLock::new(7);
        thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = lock.write();
                panic!("on purpose");
            });
            assert!(holder.join().is_err() && lock.is_poisoned());
        });
        assert_eq!(*take(|| lock.try_read(), || lock.read()), 7);
        let sleepy = || Err(TryLockError::WouldBlock);
        assert_eq!(*take(sleepy, || lock.read()), 7);
    }
}
