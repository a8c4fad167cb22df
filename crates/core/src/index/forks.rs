//! Counts the strands that begin behind the blocks of one strand; which they are, and where they are, it does not know.
//!
//! Who appends a block behind one that has just come need not look for a strand that begins there,
//! unless some strand has lost the block before it. What is not sure is taken for lost.

/// The strands that begin behind blocks of a strand.
#[derive(Debug, Default)]
pub(super) struct Forks {
    count: u32,
    /// None of them begins behind a later block.
    last: u8,
    generation: Generation,
}

/// Another one later is a sign that what was counted is taken for lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Generation(u32);

impl Forks {
    /// Whether a strand may begin behind a block.
    pub(super) fn may_be_behind(&self, offset: u8) -> bool {
        self.count > 0 && offset <= self.last
    }

    /// Counts a strand; what to take it out by.
    pub(super) fn add(&mut self, offset: u8) -> Generation {
        self.count += 1;
        self.last = self.last.max(offset);
        self.generation
    }

    /// Takes out a strand; false if it is taken for lost.
    pub(super) fn remove(&mut self, counted: Generation) -> bool {
        if self.generation != counted {
            return false;
        }
        self.count -= 1;
        if self.count == 0 {
            self.last = 0;
        }
        true
    }

    /// Takes all for lost if one may begin behind a block from `end` on; how many.
    pub(super) fn lose_from(&mut self, end: u16) -> u32 {
        if self.count == 0 || u16::from(self.last) < end {
            return 0;
        }
        self.last = 0;
        self.generation.0 = self.generation.0.wrapping_add(1);
        std::mem::take(&mut self.count)
    }
}

#[cfg(test)]
impl Forks {
    /// Whether a strand is counted still.
    pub(super) fn counts(&self, counted: Generation) -> bool {
        self.generation == counted
    }

    /// Whether strands behind these blocks are all that there are.
    pub(super) fn covers(&self, offsets: &[u8]) -> bool {
        usize::try_from(self.count) == Ok(offsets.len())
            && offsets.iter().all(|offset| self.may_be_behind(*offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strands_are_lost_with_the_block_before_them_and_then_no_longer_counted() {
        let mut forks = Forks::default();
        let first = forks.add(3);
        let second = forks.add(9);
        assert!(forks.may_be_behind(9) && !forks.may_be_behind(10));
        assert!(forks.remove(second));
        // The later one is gone, but its place is still taken for one.
        assert_eq!([10, 9].map(|end| forks.lose_from(end)), [0, 1]);
        assert!(!forks.remove(first) && !forks.may_be_behind(0));
        let third = forks.add(1);
        assert!(forks.remove(third));
        assert_eq!(forks.lose_from(0), 0);
    }
}
