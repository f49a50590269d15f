//! Space in a lease's part of an arena: best fit, neighbours merged on return, O(log n) both ways.
//!
//! Two ordered views of the free extents are kept, by offset (to merge) and by length (to choose). Best fit with immediate
//! merging keeps large extents whole, and lengths are rounded up coarsely (to an eighth of their power of two) so that what
//! one request leaves fits the next. Only the front end uses this: the engine sees offsets in request records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All extents start and end on such a boundary: two cache lines, so that no two requests share one.
const GRANULE: u64 = 128;

/// Free space of one arena range.
#[derive(Debug)]
pub(crate) struct Arena {
    capacity: u64,
    free_bytes: u64,
    len_by_offset: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Arena {
    /// All of `start..start + len` (offsets in the region) is free.
    fn new(start: u64, len: u64) -> Arena {
        let first = start.next_multiple_of(GRANULE);
        let end = (start + len) / GRANULE * GRANULE;
        let capacity = end.saturating_sub(first);
        let mut arena = Arena {
            capacity,
            free_bytes: 0,
            len_by_offset: BTreeMap::new(),
            by_len: BTreeSet::new(),
        };
        if capacity > 0 {
            arena.insert(first, capacity);
        }
        arena
    }

    fn insert(&mut self, offset: u64, len: u64) {
        self.len_by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
        self.free_bytes += len;
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.len_by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
        self.free_bytes -= len;
    }

    /// Takes the smallest free extent that holds `len` bytes; returns its offset.
    fn take(&mut self, len: u64) -> Option<u64> {
        let &(found_len, offset) = self.by_len.range((len, 0)..).next()?;
        self.remove(offset, found_len);
        if found_len > len {
            self.insert(offset + len, found_len - len);
        }
        Some(offset)
    }

    /// Gives `offset..offset + len` back and merges it with free neighbours.
    fn give_back(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        let before = self
            .len_by_offset
            .range(..offset)
            .next_back()
            .map(|(&o, &l)| (o, l));
        if let Some((o, l)) = before {
            assert!(o + l <= offset, "space given back twice");
            if o + l == offset {
                self.remove(o, l);
                start = o;
            }
        }
        let after = self
            .len_by_offset
            .range(offset..)
            .next()
            .map(|(&o, &l)| (o, l));
        if let Some((o, l)) = after {
            assert!(o >= end, "space given back twice");
            if o == end {
                self.remove(o, l);
                end = o + l;
            }
        }
        self.insert(start, end - start);
    }
}

/// Rounds up to an eighth of the power of two below, at least to the granule.
fn rounded(len: u64) -> u64 {
    let step = (len.max(1).next_power_of_two() / 16).max(GRANULE);
    len.max(1).next_multiple_of(step)
}

/// An [`Arena`] that extents give themselves back to.
#[derive(Debug, Clone)]
pub(crate) struct SharedArena(Arc<Mutex<Arena>>);

impl SharedArena {
    /// All of `start..start + len` (offsets in the region) is free.
    pub(crate) fn new(start: u64, len: u64) -> SharedArena {
        SharedArena(Arc::new(Mutex::new(Arena::new(start, len))))
    }

    fn lock(&self) -> MutexGuard<'_, Arena> {
        // A panic inside is our own broken invariant; whoever comes after would only panic again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least `len` bytes, or `None` if no free extent holds them now.
    pub(crate) fn allocate(&self, len: u64) -> Option<Extent> {
        // Near the arena's size the rounding could refuse what would fit.
        let (wanted, least) = (rounded(len), len.max(1).next_multiple_of(GRANULE));
        let mut arena = self.lock();
        let (offset, len) = match arena.take(wanted) {
            Some(offset) => (offset, wanted),
            None => (arena.take(least)?, least),
        };
        drop(arena);
        Some(Extent {
            arena: self.clone(),
            offset,
            len,
        })
    }

    /// Whether `len` bytes could be had if everything were free.
    pub(crate) fn could_hold(&self, len: u64) -> bool {
        len.max(1)
            .checked_next_multiple_of(GRANULE)
            .is_some_and(|len| len <= self.lock().capacity)
    }

    /// Total size in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.lock().capacity
    }

    /// Bytes handed out.
    pub(crate) fn used_bytes(&self) -> u64 {
        let arena = self.lock();
        arena.capacity - arena.free_bytes
    }
}

/// Part of an arena; gives itself back when dropped.
#[derive(Debug)]
pub(crate) struct Extent {
    arena: SharedArena,
    offset: u64,
    len: u64,
}

impl Extent {
    /// Byte offset in the region.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes, at least what was asked for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.arena.lock().give_back(self.offset, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator (xorshift), so that a failure repeats.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn extents_never_overlap_and_all_space_comes_back() {
        let arena = SharedArena::new(4096, 1 << 20);
        let mut held: Vec<Extent> = Vec::new();
        let mut seed = 7;
        for _ in 0..20_000 {
            if random(&mut seed) % 5 < 3 {
                if let Some(new) = arena.allocate(1 + random(&mut seed) % 9000) {
                    let clash = held
                        .iter()
                        .any(|h| new.offset < h.offset + h.len && h.offset < new.offset + new.len);
                    assert!(!clash, "{new:?} overlaps a held extent");
                    assert!(new.offset >= 4096 && new.offset + new.len <= 4096 + (1 << 20));
                    held.push(new);
                }
            } else if !held.is_empty() {
                let at = (random(&mut seed) as usize) % held.len();
                held.swap_remove(at);
            }
            assert_eq!(arena.used_bytes(), held.iter().map(|h| h.len).sum::<u64>());
        }
        held.clear();
        assert_eq!(arena.used_bytes(), 0);
        let whole = arena
            .allocate(1 << 20)
            .expect("all merged into one extent again");
        assert_eq!(whole.offset(), 4096);
    }

    #[test]
    fn three_quarters_load_of_mixed_sizes_is_hardly_ever_refused() {
        let arena = SharedArena::new(0, 64 << 20);
        let mut held: Vec<Extent> = Vec::new();
        let (mut seed, mut refused, mut asked) = (11, 0, 0);
        for _ in 0..50_000 {
            // Output spaces from 16 to 8192 tokens of 16 bytes, evenly spread over the powers of two.
            let tokens = 16u64 << (random(&mut seed) % 10);
            let len = 16 * (tokens / 2 + random(&mut seed) % (tokens / 2 + 1)).max(1);
            if arena.used_bytes() + len < (48 << 20) {
                asked += 1;
                match arena.allocate(len) {
                    Some(extent) => held.push(extent),
                    None => refused += 1,
                }
            } else {
                let at = (random(&mut seed) as usize) % held.len();
                held.swap_remove(at);
            }
        }
        assert!(asked > 10_000);
        assert!(
            refused * 1000 < asked,
            "{refused} of {asked} refused at three quarters of the space"
        );
    }

    #[test]
    fn the_whole_arena_can_be_one_extent_and_one_byte_more_cannot() {
        let arena = SharedArena::new(0, 100_096);
        assert!(arena.could_hold(100_096) && !arena.could_hold(100_097));
        assert!(arena.allocate(100_097).is_none());
        let all = arena.allocate(100_096).expect("fits exactly");
        assert_eq!(all.len(), 100_096);
        assert!(arena.allocate(1).is_none());
    }

    #[test]
    fn rounding_wastes_at_most_an_eighth() {
        for len in (1..200_000u64).step_by(37) {
            let got = rounded(len);
            assert!(
                got >= len && got <= (len + len / 8).next_multiple_of(GRANULE),
                "{len} became {got}"
            );
        }
    }
}
