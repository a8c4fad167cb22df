//! Names the places where a rank may keep a block; it ranks them and weighs nothing.

/// A tier of a rank's cache, fastest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    #[default]
    Device,
    /// Pinned memory of the host.
    Host,
    Disk,
    /// Storage outside the worker; reported and weighed as disk.
    External,
}

/// Where in a rank's cache an event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Placement {
    pub tier: Tier,
    /// The engine's cache group; copies of different groups are different copies.
    pub group: u32,
}

impl Tier {
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::External];

    /// Position among the tiers that are not the device.
    pub(crate) fn below_device(self) -> Option<usize> {
        self.index().checked_sub(1)
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Device => 0,
            Self::Host => 1,
            Self::Disk => 2,
            Self::External => 3,
        }
    }
}

impl From<Tier> for Placement {
    fn from(tier: Tier) -> Self {
        Self { tier, group: 0 }
    }
}
