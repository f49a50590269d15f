//! What lies on the device after loading, bit for bit, for every container and layout of the fixtures.

use half::bf16;
use izar_engine::cuda::weights::{CudaWeights, Ffn};
use izar_kernels::{Device, Matrix, Stream};
use izar_model::{Checkpoint, LayerParam, Param};

use crate::has_device;

/// Name, and files with their names; with one file and no `config.json` the path is the file's.
type Fixture = (&'static str, &'static [(&'static str, &'static [u8])]);

macro_rules! fixture {
    ($name:literal: $($file:literal),*) => {
        ($name, &[$(($file, include_bytes!(concat!("../../../../fixtures/", $name, "/", $file)))),*])
    };
}

const FIXTURES: &[Fixture] = &[
    fixture!("llama2": "config.json", "model.safetensors"),
    fixture!("qwen2": "config.json", "model.safetensors"),
    fixture!("qwen3-yarn": "config.json", "model.safetensors"),
    fixture!("phi3-window": "config.json", "model.safetensors"),
    fixture!("qwen3moe": "config.json", "model.safetensors"),
    fixture!("qwen3moe-mixed": "config.json", "model.safetensors"),
    fixture!("llama-k": "model.gguf"),
    fixture!("phi4-longrope-f16": "model.gguf"),
    fixture!("qwen3moe-q8_0": "model.gguf"),
];

struct Loaded {
    name: &'static str,
    stream: Stream,
    checkpoint: Checkpoint,
}

impl Loaded {
    /// Whether a matrix holds these parameters, one below the other, rounded to bf16.
    fn check(&self, got: Matrix<'_>, params: &[Param]) {
        let mut wanted = Vec::new();
        for &param in params {
            let view = self.checkpoint.param(param).unwrap();
            let view = view.unwrap_or_else(|| panic!("{}: no {param:?}", self.name));
            assert!(
                got.rows() == 1 || got.cols() as usize == view.cols,
                "{param:?}"
            );
            wanted.extend(view.to_f32().into_iter().map(bf16::from_f32));
        }
        let got = got.read(&self.stream).unwrap();
        assert_eq!(got.len(), wanted.len(), "{}: {:?}", self.name, params[0]);
        let differs = got
            .iter()
            .zip(&wanted)
            .position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{}: element of {:?}..", self.name, params[0]);
    }

    fn check_layer(&self, weights: &CudaWeights, idx: usize) {
        use LayerParam::*;
        let (layer, config) = (&weights.layers[idx], self.checkpoint.config());
        let at = |params: &[LayerParam]| -> Vec<Param> {
            params
                .iter()
                .map(|&param| Param::Layer(idx, param))
                .collect()
        };
        self.check(layer.attn_norm(), &at(&[AttnNorm]));
        self.check(layer.wqkv(), &at(&[Wq, Wk, Wv]));
        assert_eq!(layer.bqkv().is_some(), config.qkv_bias);
        if let Some(bias) = layer.bqkv() {
            self.check(bias, &at(&[Bq, Bk, Bv]));
        }
        assert_eq!(layer.head_norms().is_some(), config.qk_norm);
        if let Some((q, k)) = layer.head_norms() {
            self.check(q, &at(&[QNorm]));
            self.check(k, &at(&[KNorm]));
        }
        self.check(layer.wo(), &at(&[Wo]));
        self.check(layer.ffn_norm(), &at(&[FfnNorm]));
        match &layer.ffn {
            Ffn::Dense { gate_up, down } => {
                self.check(gate_up.view(), &at(&[WGate, WUp]));
                self.check(down.view(), &at(&[WDown]));
            }
            Ffn::Moe {
                router,
                gate_up,
                down,
            } => {
                let experts = 0..config.layer_moe(idx).unwrap().num_experts;
                let both = experts.clone().flat_map(|e| [ExpertGate(e), ExpertUp(e)]);
                self.check(router.view(), &at(&[Router]));
                self.check(gate_up.view(), &at(&both.collect::<Vec<_>>()));
                self.check(
                    down.view(),
                    &at(&experts.map(ExpertDown).collect::<Vec<_>>()),
                );
            }
        }
    }
}

#[test]
fn every_parameter_lies_where_its_kernel_reads_it() {
    if !has_device() {
        return;
    }
    for &(name, files) in FIXTURES {
        let folder = tempfile::tempdir().unwrap();
        for (file, bytes) in files {
            std::fs::write(folder.path().join(file), bytes).unwrap();
        }
        let path = match files {
            [(file, _)] => folder.path().join(file),
            _ => folder.path().to_owned(),
        };
        let loaded = Loaded {
            name,
            stream: Stream::new(&Device::open(0).unwrap()).unwrap(),
            checkpoint: Checkpoint::open(&path).unwrap(),
        };
        let mut told = Vec::new();
        let mut progress = |done, total| told.push((done, total));
        let weights = CudaWeights::load(&loaded.stream, &loaded.checkpoint, &mut progress).unwrap();
        let bytes = weights.bytes();
        assert_eq!(
            (told[0], *told.last().unwrap()),
            ((0, bytes), (bytes, bytes)),
            "{name}"
        );
        assert!(told.is_sorted(), "{name}: progress goes back");
        loaded.check(weights.embedding(), &[Param::TokenEmbedding]);
        loaded.check(weights.final_norm(), &[Param::FinalNorm]);
        loaded.check(weights.head(), &[Param::LmHead]);
        for idx in 0..loaded.checkpoint.config().num_layers {
            loaded.check_layer(&weights, idx);
        }
    }
}

#[test]
fn made_up_weights_are_finite_and_differ_from_matrix_to_matrix() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (_, files) = FIXTURES[4];
    std::fs::write(folder.path().join("config.json"), files[0].1).unwrap();
    let checkpoint = Checkpoint::open_with(folder.path(), izar_model::LoadFormat::Dummy).unwrap();
    let stream = Stream::new(&Device::open(0).unwrap()).unwrap();
    let weights = CudaWeights::load(&stream, &checkpoint, &mut |_, _| {}).unwrap();
    let mut seen = Vec::new();
    for layer in &weights.layers {
        assert!(
            layer
                .attn_norm()
                .read(&stream)
                .unwrap()
                .iter()
                .all(|&x| x == bf16::ONE)
        );
        let mut matrices = vec![layer.wqkv(), layer.wo()];
        match &layer.ffn {
            Ffn::Dense { gate_up, down } => matrices.extend([gate_up.view(), down.view()]),
            Ffn::Moe {
                router,
                gate_up,
                down,
            } => matrices.extend([router.view(), gate_up.view(), down.view()]),
        }
        for matrix in matrices {
            let elements = matrix.read(&stream).unwrap();
            assert!(elements.iter().all(|x| x.is_finite()));
            let start = elements[..16].to_vec();
            assert!(!seen.contains(&start), "two matrices are alike");
            seen.push(start);
        }
    }
}
