//! Element-wise pieces of a layer: exponential, SiLU, RMS norm, rotation. Each token's result is a function of its own row, in a fixed order.

use super::acts::ActsView;
use super::format::GROUP;
use super::simd::{Kernel, LANES, Simd};

/// eˣ within 2 units in the last place; exactly 1 at 0, exactly 0 from -88 down, NaN for NaN.
///
/// Cody–Waite reduction by ln 2 and the Cephes `expf` polynomial.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract. The second operand of `max` and `min` carries a NaN through.
    unsafe {
        let x = S::min(S::splat(88.0), S::max(S::splat(-88.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let whole = S::to_f32(n);
        let r = S::fma(whole, S::splat(-0.693_359_4), x);
        let r = S::fma(whole, S::splat(2.121_944_4e-4), r);
        let p = S::fma(S::splat(1.987_569_1e-4), r, S::splat(1.398_199_9e-3));
        let p = S::fma(p, r, S::splat(8.333_452e-3));
        let p = S::fma(p, r, S::splat(4.166_579_6e-2));
        let p = S::fma(p, r, S::splat(1.666_666_5e-1));
        let p = S::fma(p, r, S::splat(0.5));
        let p = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        S::mul(p, S::exp2i(n))
    }
}

/// x / (1 + e⁻ˣ).
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { S::div(x, S::add(S::splat(1.0), exp::<S>(S::sub(S::splat(0.0), x)))) }
}

/// Root-mean-square norm of a token's row into activations.
pub(super) struct NormToken<'a> {
    /// `[padded features]`, padding zero.
    pub(super) row: &'a [f32],
    /// `[padded features]`, padding zero.
    pub(super) weight: &'a [f32],
    /// Features without padding.
    pub(super) features: usize,
    pub(super) eps: f32,
    pub(super) out: &'a ActsView,
    /// Token index in `out`.
    pub(super) token: usize,
}

impl Kernel for NormToken<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            row,
            weight,
            features,
            eps,
            out,
            token,
        } = self;
        assert!(row.len() == weight.len() && row.len().is_multiple_of(GROUP));
        // SAFETY: both rows are whole groups long; the token is this rank's by the caller's contract.
        unsafe {
            let scale = S::splat(inverse_rms::<S>(row, features, eps));
            for group in 0..row.len() / GROUP {
                let at = |half: usize| {
                    let i = group * GROUP + half * LANES;
                    (row.as_ptr().add(i), weight.as_ptr().add(i))
                };
                let ((x0, w0), (x1, w1)) = (at(0), at(1));
                let low = S::mul(S::load(w0), S::mul(S::load(x0), scale));
                let high = S::mul(S::load(w1), S::mul(S::load(x1), scale));
                out.store_group::<S>(token, group, [low, high]);
            }
        }
    }
}

/// 1 / √(mean of squares + eps) over a row whose length is a multiple of 16 (zero padded).
#[inline(always)]
unsafe fn inverse_rms<S: Simd>(row: &[f32], features: usize, eps: f32) -> f32 {
    // SAFETY: whole vectors only.
    unsafe {
        let mut squares = S::splat(0.0);
        for i in 0..row.len() / LANES {
            let x = S::load(row.as_ptr().add(i * LANES));
            squares = S::fma(x, x, squares);
        }
        1.0 / (S::reduce_add(squares) / features as f32 + eps).sqrt()
    }
}

/// SwiGLU of one group of 32 features: `silu(gate) * up` into activations.
pub(super) struct SwiGlu<'a> {
    /// `[tokens][stride]`, this group's gate values from column 0, up values from column 32.
    pub(super) projected: &'a [f32],
    pub(super) stride: usize,
    pub(super) num_tokens: usize,
    pub(super) out: &'a ActsView,
    /// Index in `out` of the first token.
    pub(super) first_token: usize,
    pub(super) group: usize,
}

impl Kernel for SwiGlu<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.projected.len() >= (self.num_tokens - 1) * self.stride + 2 * GROUP);
        for m in 0..self.num_tokens {
            // SAFETY: in bounds, asserted; the tokens' group is this rank's by the caller's contract.
            unsafe {
                let gate = self.projected.as_ptr().add(m * self.stride);
                let up = gate.add(GROUP);
                let low = S::mul(silu::<S>(S::load(gate)), S::load(up));
                let high = S::mul(silu::<S>(S::load(gate.add(LANES))), S::load(up.add(LANES)));
                self.out
                    .store_group::<S>(self.first_token + m, self.group, [low, high]);
            }
        }
    }
}

/// Copies a row into activations as it is.
pub(super) struct StoreToken<'a> {
    /// `[padded features]`.
    pub(super) row: &'a [f32],
    pub(super) out: &'a ActsView,
    pub(super) token: usize,
}

impl Kernel for StoreToken<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.row.len().is_multiple_of(GROUP));
        for group in 0..self.row.len() / GROUP {
            // SAFETY: whole groups; the token is this rank's by the caller's contract.
            unsafe {
                let x = self.row.as_ptr().add(group * GROUP);
                self.out
                    .store_group::<S>(self.token, group, [S::load(x), S::load(x.add(LANES))]);
            }
        }
    }
}

/// `row += addend`, element by element.
pub(super) struct AddTo<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) addend: &'a [f32],
}

impl Kernel for AddTo<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (x, y) in self.row.iter_mut().zip(self.addend) {
            *x += y;
        }
    }
}

/// `row += factor * addend`, element by element, rounded once.
pub(super) struct AddScaled<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) addend: &'a [f32],
    pub(super) factor: f32,
}

impl Kernel for AddScaled<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (x, y) in self.row.iter_mut().zip(self.addend) {
            *x = self.factor.mul_add(*y, *x);
        }
    }
}

/// How one head's projection becomes a query or a key: bias, norm, rotation, factor.
#[derive(Clone, Copy)]
pub(super) struct HeadRecipe<'a> {
    pub(super) bias: Option<&'a [f32]>,
    /// Weight of the RMS norm, and its epsilon.
    pub(super) norm: Option<(&'a [f32], f32)>,
    /// `None`: a value head, which does not turn.
    pub(super) rotation: Option<Rotation>,
    /// Multiplies everything in the end.
    pub(super) factor: f32,
}

/// Which features turn, and in which pairs.
#[derive(Clone, Copy)]
pub(super) struct Rotation {
    pub(super) rotary_dim: usize,
    pub(super) interleaved: bool,
}

/// Applies a recipe in place.
pub(super) struct FinishHead<'a> {
    /// `[head_dim]`.
    pub(super) head: &'a mut [f32],
    pub(super) recipe: &'a HeadRecipe<'a>,
    /// The position's cosines, then its sines, `rotary_dim / 2` of each.
    pub(super) angles: &'a [f32],
}

impl Kernel for FinishHead<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            head,
            recipe,
            angles,
        } = self;
        if let Some(bias) = recipe.bias {
            head.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        if let Some((weight, eps)) = recipe.norm {
            let squares = head.iter().fold(0.0f32, |acc, x| acc + x * x);
            let scale = 1.0 / (squares / head.len() as f32 + eps).sqrt();
            head.iter_mut()
                .zip(weight)
                .for_each(|(x, w)| *x = w * (*x * scale));
        }
        if let Some(rotation) = recipe.rotation {
            let half = rotation.rotary_dim / 2;
            let (cos, sin) = angles[..2 * half].split_at(half);
            if rotation.interleaved {
                for (pair, (c, s)) in head[..2 * half]
                    .chunks_exact_mut(2)
                    .zip(cos.iter().zip(sin))
                {
                    (pair[0], pair[1]) = rotate(pair[0], pair[1], *c, *s);
                }
            } else {
                let (low, high) = head[..2 * half].split_at_mut(half);
                for (i, (a, b)) in low.iter_mut().zip(high).enumerate() {
                    (*a, *b) = rotate(*a, *b, cos[i], sin[i]);
                }
            }
        }
        if recipe.factor != 1.0 {
            head.iter_mut().for_each(|x| *x *= recipe.factor);
        }
    }
}

#[inline(always)]
fn rotate(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::acts::{Acts, Precision};
    use crate::cpu::simd::{Isa, run};
    use crate::cpu::testing::random_values;

    struct Exp<'a>(&'a mut [f32; LANES]);

    impl Kernel for Exp<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: 16 elements.
            unsafe { S::store(self.0.as_mut_ptr(), exp::<S>(S::load(self.0.as_ptr()))) }
        }
    }

    fn exp_all(isa: Isa, mut x: [f32; LANES]) -> [f32; LANES] {
        // SAFETY: a detected instruction set.
        unsafe { run(isa, Exp(&mut x)) };
        x
    }

    #[test]
    fn exp_is_accurate_and_the_same_bits_everywhere() {
        for step in 0..2000 {
            let x: [f32; LANES] =
                std::array::from_fn(|i| (step * LANES + i) as f32 * 0.0054 - 87.0);
            let portable = exp_all(Isa::Portable, x);
            for (x, y) in x.iter().zip(portable) {
                let exact = f64::from(*x).exp();
                assert!(
                    (f64::from(y) - exact).abs() <= exact * 2.5e-7,
                    "exp({x}) = {y}"
                );
            }
            for isa in Isa::available() {
                assert_eq!(
                    exp_all(isa, x).map(f32::to_bits),
                    portable.map(f32::to_bits),
                    "{}",
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn exp_of_the_ends() {
        for isa in Isa::available() {
            let mut x = [0.0; LANES];
            (x[1], x[2], x[3]) = (f32::NEG_INFINITY, -88.0, f32::NAN);
            let y = exp_all(isa, x);
            assert_eq!(y[..3], [1.0, 0.0, 0.0]);
            assert!(y[3].is_nan());
        }
    }

    fn stored(isa: Isa, features: usize, store: impl FnOnce(&ActsView)) -> Vec<f32> {
        let precision = Precision {
            codes: false,
            values: true,
        };
        let mut acts = Acts::new(1, features, precision).unwrap();
        let view = acts.view(1);
        store(&view);
        let len = features.next_multiple_of(GROUP);
        assert!(isa <= Isa::detect());
        // SAFETY: block 0 holds one token of whole groups.
        unsafe { std::slice::from_raw_parts(view.values(0), len) }.to_vec()
    }

    #[test]
    fn rms_norm_is_the_formula_and_ignores_padding() {
        let features = 50;
        let mut row = random_values(features, 1);
        let mut weight = random_values(features, 2);
        let mean: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / features as f64;
        let scale = 1.0 / (mean + 1e-5).sqrt();
        let expected: Vec<f64> = row
            .iter()
            .zip(&weight)
            .map(|(x, w)| f64::from(*x) * scale * f64::from(*w))
            .collect();
        row.resize(64, 0.0);
        weight.resize(64, 0.0);
        for isa in Isa::available() {
            let got = stored(isa, features, |out| {
                let norm = NormToken {
                    row: &row,
                    weight: &weight,
                    features,
                    eps: 1e-5,
                    out,
                    token: 0,
                };
                // SAFETY: a detected instruction set; one thread.
                unsafe { run(isa, norm) }
            });
            for (got, expected) in got.iter().zip(&expected) {
                assert!(
                    (f64::from(*got) - expected).abs() < 1e-6,
                    "{}: {got} is not {expected}",
                    isa.name()
                );
            }
            assert!(got[features..].iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn swiglu_is_the_formula() {
        let projected: Vec<f32> = random_values(2 * GROUP, 3)
            .into_iter()
            .map(|x| x * 20.0)
            .collect();
        for isa in Isa::available() {
            let got = stored(isa, GROUP, |out| {
                let swiglu = SwiGlu {
                    projected: &projected,
                    stride: 2 * GROUP,
                    num_tokens: 1,
                    out,
                    first_token: 0,
                    group: 0,
                };
                // SAFETY: a detected instruction set; one thread.
                unsafe { run(isa, swiglu) }
            });
            for (i, got) in got.iter().enumerate() {
                let (gate, up) = (f64::from(projected[i]), f64::from(projected[GROUP + i]));
                let expected = gate / (1.0 + (-gate).exp()) * up;
                assert!((f64::from(*got) - expected).abs() <= expected.abs() * 1e-6 + 1e-12);
            }
        }
    }

    #[test]
    fn heads_turn_by_the_formula() {
        let angles = [0.3f32.cos(), 0.7f32.cos(), 0.3f32.sin(), 0.7f32.sin()];
        let input = [1.0, 2.0, 3.0, 4.0, 5.0];
        for (interleaved, pairs) in [(false, [(0, 2), (1, 3)]), (true, [(0, 1), (2, 3)])] {
            let mut expected = input;
            for (i, (a, b)) in pairs.into_iter().enumerate() {
                let (cos, sin) = (angles[i], angles[2 + i]);
                expected[a] = input[a] * cos - input[b] * sin;
                expected[b] = input[b] * cos + input[a] * sin;
            }
            let recipe = HeadRecipe {
                bias: None,
                norm: None,
                rotation: Some(Rotation {
                    rotary_dim: 4,
                    interleaved,
                }),
                factor: 1.0,
            };
            for isa in Isa::available() {
                let mut head = input;
                // SAFETY: a detected instruction set.
                unsafe {
                    run(
                        isa,
                        FinishHead {
                            head: &mut head,
                            recipe: &recipe,
                            angles: &angles,
                        },
                    )
                };
                assert_eq!(head, expected);
            }
        }
    }
}
