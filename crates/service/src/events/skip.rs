//! Why an event, or part of one, does not reach the index: the names that metrics and records show.
//!
//! It decides nothing; the decoder and the ingest do.

/// One reason for leaving something out. The set is closed, so it is safe as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum SkipReason {
    /// The tag names no event that we know, or the engine's own `Ignored`.
    UnknownEvent,
    /// The shape of a known event is wrong.
    Malformed,
    /// A medium we have no name for.
    UnknownMedium,
    /// The cache is not full attention: its blocks are not reusable as a prefix.
    CacheKind,
    /// A cache group whose kind was never announced.
    UnknownGroup,
    /// The blocks are held elsewhere than at this engine.
    Locality,
    /// The blocks belong to a cache that the engine does not own.
    Ownership,
    /// The event's block size is no multiple or divisor of the partition's.
    BlockSize,
    /// The tokens do not fill the blocks that the event names.
    TokenCount,
    /// One event names the same block twice.
    DuplicateHash,
    /// Extra keys that change the block's identity cannot be read.
    ExtraKeys,
    /// The block was hashed with look-ahead tokens.
    Lookahead,
    /// An adapter is given by number only.
    UnnamedAdapter,
    /// Adapter or salt differ from the parent's.
    Namespace,
    /// Too many salted or adapter blocks are remembered for this rank.
    NamespacesFull,
    /// Pairs where the partition counts single tokens, or the reverse.
    TokenForm,
    /// The data-parallel rank is not one of the worker's.
    UnknownRank,
    /// A replayed batch that belongs to another rank.
    OtherRank,
    /// The parent is not held by this rank, so the place of blocks that are to be joined is not known.
    UnknownParent,
    /// Blocks told without tokens that the rank holds in no tier.
    UnknownBlock,
    /// The rank has too many small blocks that are to be joined, or block sizes.
    RecutFull,
}

impl SkipReason {
    pub(crate) const ALL: [Self; 21] = [
        Self::UnknownEvent,
        Self::Malformed,
        Self::UnknownMedium,
        Self::CacheKind,
        Self::UnknownGroup,
        Self::Locality,
        Self::Ownership,
        Self::BlockSize,
        Self::TokenCount,
        Self::DuplicateHash,
        Self::ExtraKeys,
        Self::Lookahead,
        Self::UnnamedAdapter,
        Self::Namespace,
        Self::NamespacesFull,
        Self::TokenForm,
        Self::UnknownRank,
        Self::OtherRank,
        Self::UnknownParent,
        Self::UnknownBlock,
        Self::RecutFull,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownEvent => "unknown_event",
            Self::Malformed => "malformed",
            Self::UnknownMedium => "unknown_medium",
            Self::CacheKind => "cache_kind",
            Self::UnknownGroup => "unknown_group",
            Self::Locality => "locality",
            Self::Ownership => "ownership",
            Self::BlockSize => "block_size",
            Self::TokenCount => "token_count",
            Self::DuplicateHash => "duplicate_hash",
            Self::ExtraKeys => "extra_keys",
            Self::Lookahead => "lookahead",
            Self::UnnamedAdapter => "unnamed_adapter",
            Self::Namespace => "namespace",
            Self::NamespacesFull => "namespaces_full",
            Self::TokenForm => "token_form",
            Self::UnknownRank => "unknown_rank",
            Self::OtherRank => "other_rank",
            Self::UnknownParent => "unknown_parent",
            Self::UnknownBlock => "unknown_block",
            Self::RecutFull => "recut_full",
        }
    }
}

/// How many events were left out for each reason, and what else was passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skips {
    counts: [u32; SkipReason::ALL.len()],
    /// Fields of events and batches that we have no name for.
    pub(crate) unknown_fields: u32,
}

impl Skips {
    pub(crate) fn add_fields(&mut self, unknown: u32) {
        self.unknown_fields = self.unknown_fields.saturating_add(unknown);
    }

    pub(crate) fn add(&mut self, reason: SkipReason) {
        let count = &mut self.counts[reason as usize];
        *count = count.saturating_add(1);
    }

    #[cfg(test)]
    pub(crate) fn of(&self, reason: SkipReason) -> u32 {
        self.counts[reason as usize]
    }

    #[cfg(test)]
    pub(crate) fn total(&self) -> u32 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The reasons that occurred, with their counts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SkipReason, u32)> + '_ {
        SkipReason::ALL
            .into_iter()
            .map(|reason| (reason, self.counts[reason as usize]))
            .filter(|(_, count)| *count > 0)
    }
}
