//! One function per element type: blocks of bytes in, f32 out.
//!
//! Lengths are checked once by [`Dtype::dequantize`](crate::Dtype::dequantize); here `data` is whole blocks
//! and `out` their elements. Nothing assumes alignment of `data`.

use half::{bf16, f16};

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn blocks<'a, const BYTES: usize, const LEN: usize>(
    data: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; LEN])> {
    let (data, _) = data.as_chunks::<BYTES>();
    let (out, _) = out.as_chunks_mut::<LEN>();
    data.iter().zip(out)
}

pub(crate) fn f32(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<4, 1>(data, out) {
        y[0] = f32::from_le_bytes(*b);
    }
}

pub(crate) fn f16(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<2, 1>(data, out) {
        y[0] = f16::from_le_bytes(*b).to_f32();
    }
}

pub(crate) fn bf16(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<2, 1>(data, out) {
        y[0] = bf16::from_le_bytes(*b).to_f32();
    }
}

/// `d: f16, q: [i8; 32]`.
pub(crate) fn q8_0(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<34, 32>(data, out) {
        let d = half(&b[0..2]);
        for (y, &q) in y.iter_mut().zip(&b[2..]) {
            *y = f32::from(q as i8) * d;
        }
    }
}

/// `d: f16, q: [u8; 16]`; byte `j` holds elements `j` (low nibble) and `j + 16`.
pub(crate) fn q4_0(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<18, 32>(data, out) {
        let d = half(&b[0..2]);
        for (j, &q) in b[2..].iter().enumerate() {
            y[j] = (f32::from(q & 15) - 8.0) * d;
            y[j + 16] = (f32::from(q >> 4) - 8.0) * d;
        }
    }
}

/// `d: f16, m: f16, q: [u8; 16]`.
pub(crate) fn q4_1(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<20, 32>(data, out) {
        let (d, m) = (half(&b[0..2]), half(&b[2..4]));
        for (j, &q) in b[4..].iter().enumerate() {
            y[j] = f32::from(q & 15) * d + m;
            y[j + 16] = f32::from(q >> 4) * d + m;
        }
    }
}

/// The 5-bit values of nibble byte `q`, elements `j` and `j + 16`; `high` has one fifth bit per element.
fn five_bits(q: u8, high: u32, j: usize) -> (f32, f32) {
    let low_bit = ((high >> j) & 1) as u8;
    let high_bit = ((high >> (j + 16)) & 1) as u8;
    (
        f32::from((q & 15) | (low_bit << 4)),
        f32::from((q >> 4) | (high_bit << 4)),
    )
}

/// `d: f16, high: u32, q: [u8; 16]`.
pub(crate) fn q5_0(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<22, 32>(data, out) {
        let d = half(&b[0..2]);
        let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
        for (j, &q) in b[6..].iter().enumerate() {
            let (low, upper) = five_bits(q, high, j);
            y[j] = (low - 16.0) * d;
            y[j + 16] = (upper - 16.0) * d;
        }
    }
}

/// `d: f16, m: f16, high: u32, q: [u8; 16]`.
pub(crate) fn q5_1(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<24, 32>(data, out) {
        let (d, m) = (half(&b[0..2]), half(&b[2..4]));
        let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        for (j, &q) in b[8..].iter().enumerate() {
            let (low, upper) = five_bits(q, high, j);
            y[j] = low * d + m;
            y[j + 16] = upper * d + m;
        }
    }
}

/// The 6-bit (scale, minimum) of group `j` of 8, packed into 12 bytes: groups 0..4 in the low six bits of
/// bytes `j` and `j + 4`; groups 4..8 as nibbles of byte `j + 4` topped by the two spare bits of the former.
fn k_scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
            (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4),
        )
    };
    (f32::from(scale), f32::from(min))
}

/// `d: f16, dmin: f16, scales: [u8; 12], q: [u8; 128]`; 32 bytes hold two groups of 32: low nibbles, then high.
pub(crate) fn q4_k(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<144, 256>(data, out) {
        let (d, dmin) = (half(&b[0..2]), half(&b[2..4]));
        let (scales, q) = (&b[4..16], &b[16..]);
        for (pair, (q, y)) in q.chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
            let (s0, m0) = k_scale_min(scales, 2 * pair);
            let (s1, m1) = k_scale_min(scales, 2 * pair + 1);
            let (s0, m0, s1, m1) = (d * s0, dmin * m0, d * s1, dmin * m1);
            for (l, &q) in q.iter().enumerate() {
                y[l] = s0 * f32::from(q & 15) - m0;
                y[l + 32] = s1 * f32::from(q >> 4) - m1;
            }
        }
    }
}

/// As [`q4_k`] with `high: [u8; 32]` before `q`: bit `g` of byte `l` is the fifth bit of element `l` of group `g`.
pub(crate) fn q5_k(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<176, 256>(data, out) {
        let (d, dmin) = (half(&b[0..2]), half(&b[2..4]));
        let (scales, high, q) = (&b[4..16], &b[16..48], &b[48..]);
        for (pair, (q, y)) in q.chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
            let (s0, m0) = k_scale_min(scales, 2 * pair);
            let (s1, m1) = k_scale_min(scales, 2 * pair + 1);
            let (s0, m0, s1, m1) = (d * s0, dmin * m0, d * s1, dmin * m1);
            for (l, (&q, &high)) in q.iter().zip(high).enumerate() {
                let fifth = high >> (2 * pair);
                y[l] = s0 * f32::from((q & 15) | ((fifth & 1) << 4)) - m0;
                y[l + 32] = s1 * f32::from((q >> 4) | ((fifth & 2) << 3)) - m1;
            }
        }
    }
}

/// `low: [u8; 128], high: [u8; 64], scales: [i8; 16], d: f16`, in two halves of 128 elements.
pub(crate) fn q6_k(data: &[u8], out: &mut [f32]) {
    for (b, y) in blocks::<210, 256>(data, out) {
        let d = half(&b[208..210]);
        let halves = b[0..128].chunks_exact(64).zip(b[128..192].chunks_exact(32));
        let scales = b[192..208].chunks_exact(8);
        for (((low, high), scales), y) in halves.zip(scales).zip(y.chunks_exact_mut(128)) {
            for (quarter, y) in y.chunks_exact_mut(32).enumerate() {
                let low = &low[32 * (quarter % 2)..];
                for (l, y) in y.iter_mut().enumerate() {
                    let nibble = (low[l] >> (4 * (quarter / 2))) & 15;
                    let top = (high[l] >> (2 * quarter)) & 3;
                    let scale = f32::from(scales[2 * quarter + l / 16] as i8);
                    *y = d * scale * (f32::from(nibble | (top << 4)) - 32.0);
                }
            }
        }
    }
}
