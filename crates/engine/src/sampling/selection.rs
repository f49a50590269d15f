//! Exact selection without sorting: the k-th largest value, and the value at which a falling sum of
//! masses reaches a target.

/// Bits of a value looked at in each round of radix selection: 11, 11 and 10 make 32. Also the
/// number of buckets.
const DIGIT_BITS: u32 = 11;

/// Up to this many values are sorted instead: less work than clearing the histograms.
const MAX_SORTED: usize = 256;

/// Scratch memory of the selections.
#[derive(Debug)]
pub(super) struct Selection {
    keys: Vec<u32>,
    histogram: Box<[u64; 1 << DIGIT_BITS]>,
}

impl Selection {
    /// For up to `max_values` values.
    pub fn new(max_values: usize) -> Self {
        Self {
            keys: Vec::with_capacity(max_values),
            histogram: Box::new([0; 1 << DIGIT_BITS]),
        }
    }

    /// The k-th largest of the values, k from 1 to their number.
    pub fn kth_largest(&mut self, values: &[f32], k: usize) -> f32 {
        self.keys.clear();
        self.keys
            .extend(values.iter().map(|&value| falling_key(value)));
        let (_, &mut kth, _) = self.keys.select_nth_unstable(k - 1);
        value_of_falling_key(kth)
    }

    /// The largest value v such that values at least v weigh `target` or more together; the
    /// smallest value that weighs anything if all together weigh less.
    ///
    /// `masses` are those of the values and stay below 2^53 in total, so that comparing with
    /// `target` is exact.
    pub fn threshold(&mut self, values: &[f32], masses: &[u32], target: f64) -> f32 {
        let pairs = |i: u32| (values[i as usize], masses[i as usize]);
        if values.len() <= MAX_SORTED {
            return sorted_threshold((0..values.len() as u32).map(pairs), 0, target);
        }
        let above = self.narrow(values, masses, target);
        if self.keys.len() <= MAX_SORTED {
            return sorted_threshold(self.keys.iter().copied().map(pairs), above, target);
        }
        self.radix_threshold(values, masses, above, target)
    }

    /// Leaves in `keys` the indices of the values in whose bucket the sum reaches the target, and
    /// returns the sum above it.
    fn narrow(&mut self, values: &[f32], masses: &[u32], target: f64) -> u64 {
        self.histogram.fill(0);
        for (&value, &mass) in values.iter().zip(masses) {
            self.histogram[bucket(value)] += u64::from(mass);
        }
        let (found, above) = reach(&self.histogram[..], 0, target);
        let indices = (0u32..)
            .zip(values)
            .filter(|&(_, &value)| bucket(value) == found);
        self.keys.clear();
        self.keys.extend(indices.map(|(i, _)| i));
        above
    }

    /// The threshold among the values whose indices are in `keys`, found bit by bit.
    fn radix_threshold(&mut self, values: &[f32], masses: &[u32], above: u64, target: f64) -> f32 {
        let (mut prefix, mut above) = (0, above);
        for (known, shift) in [(32, 21), (21, 10), (10, 0)] {
            let digit_mask = (1 << (known - shift)) - 1;
            self.histogram.fill(0);
            for &i in &self.keys {
                let key = falling_key(values[i as usize]);
                if u64::from(key ^ prefix) >> known == 0 {
                    let digit = (key >> shift) as usize & digit_mask;
                    self.histogram[digit] += u64::from(masses[i as usize]);
                }
            }
            let (digit, before) = reach(&self.histogram[..], above, target);
            above = before;
            prefix |= (digit as u32) << shift;
        }
        value_of_falling_key(prefix)
    }
}

/// The threshold among at most [`MAX_SORTED`] values and their masses, `above` being the sum before
/// them.
fn sorted_threshold(pairs: impl Iterator<Item = (f32, u32)>, above: u64, target: f64) -> f32 {
    let mut sorted = [0u64; MAX_SORTED];
    let mut len = 0;
    for ((value, mass), slot) in pairs.zip(&mut sorted) {
        *slot = u64::from(falling_key(value)) << 32 | u64::from(mass);
        len += 1;
    }
    let sorted = &mut sorted[..len];
    sorted.sort_unstable();
    let (at, _) = reach(sorted.iter().map(|pair| pair & 0xFFFF_FFFF), above, target);
    value_of_falling_key((sorted[at] >> 32) as u32)
}

/// A bucket that never falls as the value does. The values that weigh anything, 0 to -23, are
/// spread over all buckets.
#[inline(always)]
fn bucket(value: f32) -> usize {
    const LAST: usize = (1 << DIGIT_BITS) - 1;
    // The conversion saturates: what is above 0 shares the first bucket.
    ((value * (LAST as f32 / -23.0)) as usize).min(LAST)
}

/// Where a sum that starts at `before` reaches the target, or the last place that adds to it; and
/// the sum before that place.
fn reach<T: IntoIterator>(masses: T, before: u64, target: f64) -> (usize, u64)
where
    T::Item: std::borrow::Borrow<u64>,
{
    use std::borrow::Borrow;
    let mut sum = before;
    let mut last = (0, before);
    for (at, mass) in masses.into_iter().enumerate() {
        let mass = *mass.borrow();
        if mass > 0 {
            last = (at, sum);
            sum += mass;
            if sum as f64 >= target {
                break;
            }
        }
    }
    last
}

/// A key that falls as the value rises; both zeros have the same.
#[inline(always)]
fn falling_key(value: f32) -> u32 {
    // Adding zero turns the negative zero into the positive one.
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 {
        bits
    } else {
        0x7FFF_FFFF - bits
    }
}

#[inline(always)]
fn value_of_falling_key(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 {
        key
    } else {
        0x7FFF_FFFF - key
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(max_len: usize) -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            4 => -20f32..20.0,
            1 => (-3i32..3).prop_map(|i| i as f32),
            1 => Just(-0.0f32),
            1 => -1e-3f32..1e-3,
        ];
        prop::collection::vec(value, 1..max_len)
    }

    proptest! {
        #[test]
        fn kth_largest_equals_sorting(values in values(500), k in 0usize..500) {
            let k = k % values.len();
            let mut sorted = values.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            prop_assert_eq!(Selection::new(500).kth_largest(&values, k + 1), sorted[k]);
        }

        #[test]
        fn threshold_equals_a_sorted_walk(
            values in prop_oneof![
                values(MAX_SORTED),
                values(3000),
                // All in one bucket.
                prop::collection::vec(-4.001f32..-4.0, MAX_SORTED + 1..3000),
            ],
            seed: u32,
            fraction in 0f64..1.2,
        ) {
            let mass = |i: usize| (i as u32).wrapping_mul(seed | 1) >> 16;
            let masses: Vec<u32> = (0..values.len()).map(mass).collect();
            let total: u64 = masses.iter().map(|&m| u64::from(m)).sum();
            prop_assume!(total > 0);
            let target = fraction * total as f64;

            let mut order: Vec<usize> = (0..values.len()).filter(|&i| masses[i] > 0).collect();
            order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
            let mut sum = 0;
            let reached = order.iter().find(|&&i| {
                sum += u64::from(masses[i]);
                sum as f64 >= target
            });
            let expected = values[*reached.unwrap_or(&order[order.len() - 1])];
            prop_assert_eq!(Selection::new(3000).threshold(&values, &masses, target), expected);
        }

        #[test]
        fn keys_order_values_downwards(a: f32, b: f32) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(falling_key(a).cmp(&falling_key(b)), b.partial_cmp(&a).unwrap());
            prop_assert_eq!(value_of_falling_key(falling_key(a)), a);
        }
    }
}
