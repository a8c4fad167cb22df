//! A list that has a single item by value; it is no more than a list.

use std::ops::{Deref, DerefMut};

/// Mostly one item, which then needs no memory of its own.
#[derive(Debug)]
pub(super) enum Few<T> {
    One(Option<T>),
    Many(Vec<T>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::One(None)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(item) => item.as_slice(),
            Self::Many(items) => items,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(item) => item.as_mut_slice(),
            Self::Many(items) => items,
        }
    }
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, item: T) {
        self.insert(self.len(), item);
    }

    pub(super) fn insert(&mut self, at: usize, item: T) {
        match self {
            Self::One(none @ None) => *none = Some(item),
            Self::One(only) => {
                let mut items = Vec::with_capacity(2);
                items.extend(only.take());
                items.insert(at, item);
                *self = Self::Many(items);
            }
            Self::Many(items) => items.insert(at, item),
        }
    }

    /// Takes out an item that is there.
    pub(super) fn remove(&mut self, at: usize) {
        match self {
            Self::One(only) => *only = None,
            Self::Many(items) => {
                items.remove(at);
                if items.len() < 2 {
                    *self = Self::One(items.pop());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_in_order_as_they_come_and_go() {
        let mut few = Few::default();
        assert!(few.is_empty());
        few.push(2);
        assert_eq!(*few, [2]);
        few.insert(0, 1);
        few.push(4);
        few.insert(2, 3);
        assert_eq!(*few, [1, 2, 3, 4]);
        few.remove(1);
        few.remove(2);
        assert_eq!(*few, [1, 3]);
        few.remove(0);
        assert!(matches!(few, Few::One(Some(3))));
        few.remove(0);
        assert!(few.is_empty());
    }
}
