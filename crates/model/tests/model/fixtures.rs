//! The fixtures: every architecture, both containers, all their parameters.

use izar_model::{
    Architecture, Checkpoint, Dtype, LayerParam, ModelConfig, Pairing, Param, RopeScaling,
};

use crate::files::{all_fixtures, model_path};

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&model_path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn values(checkpoint: &Checkpoint, param: Param) -> Vec<f32> {
    checkpoint
        .param(param)
        .unwrap()
        .unwrap_or_else(|| panic!("{param:?} exists"))
        .to_f32()
}

#[test]
fn every_fixture_yields_every_parameter_of_its_shape() {
    let names = all_fixtures();
    assert!(names.len() >= 21, "{names:?}");
    for name in names {
        let checkpoint = open(&name);
        let config = checkpoint.config();
        let mut bytes = 0;
        for param in Param::all(config) {
            let view = checkpoint.param(param).unwrap().unwrap();
            assert_eq!(
                Some([view.rows, view.cols]),
                param.shape(config),
                "{name} {param:?}"
            );
            assert!(
                view.to_f32().iter().all(|v| v.is_finite()),
                "{name} {param:?}"
            );
            bytes += view.data.len() as u64;
        }
        assert_eq!(checkpoint.total_bytes(), bytes, "{name}");
        assert!(!checkpoint.files().is_empty(), "{name}");
    }
}

#[test]
fn a_checkpoint_can_be_shared_by_threads() {
    let checkpoint = open("qwen3moe-q8_0");
    let layers = 0..checkpoint.config().num_layers;
    let router = |layer| values(&checkpoint, Param::Layer(layer, LayerParam::Router));
    let sums: Vec<f32> = std::thread::scope(|scope| {
        let threads: Vec<_> = layers
            .clone()
            .map(|layer| scope.spawn(move || router(layer).iter().sum()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let expected: Vec<f32> = layers.map(|layer| router(layer).iter().sum()).collect();
    assert_eq!(sums, expected);
}

/// Row `r` of a head of `head_dim` rows, as transformers orders them, in llama.cpp's order.
fn interleaved_row(row: usize, head_dim: usize) -> usize {
    let (head, r) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + if r < half { 2 * r } else { 2 * (r - half) + 1 }
}

fn assert_same(
    what: &str,
    config: &ModelConfig,
    param: Param,
    hf: &[f32],
    gguf: &[f32],
    tolerance: f32,
) {
    use LayerParam::{Wk, Wq};
    let permuted =
        config.rope.pairing == Pairing::Interleaved && matches!(param, Param::Layer(_, Wq | Wk));
    let [rows, cols] = param.shape(config).unwrap();
    for row in 0..rows {
        let other = if permuted {
            interleaved_row(row, config.head_dim)
        } else {
            row
        };
        let (a, b) = (&hf[row * cols..][..cols], &gguf[other * cols..][..cols]);
        let worst = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(
            worst <= tolerance,
            "{what} {param:?} row {row}: off by {worst}"
        );
    }
}

#[test]
fn a_gguf_holds_the_parameters_of_the_directory_it_was_made_from() {
    let pairs = [
        ("llama2", "llama2-q8_0", 0.03),
        ("llama31", "llama31-f16", 0.002),
        ("qwen2", "qwen2-q8_0", 0.03),
        ("qwen3", "qwen3-f16", 0.001),
        ("qwen3-yarn", "qwen3-yarn-q8_0", 0.03),
        ("qwen3moe", "qwen3moe-q8_0", 0.03),
        ("phi3-window", "phi3-window-q8_0", 0.03),
        ("phi4-longrope", "phi4-longrope-f16", 0.001),
    ];
    for (hf_name, gguf_name, tolerance) in pairs {
        let (hf, gguf) = (open(hf_name), open(gguf_name));
        for param in Param::all(hf.config()) {
            let (a, b) = (values(&hf, param), values(&gguf, param));
            assert_same(gguf_name, gguf.config(), param, &a, &b, tolerance);
        }
    }
}

#[test]
fn both_containers_describe_the_same_model() {
    for (hf_name, gguf_name) in [
        ("qwen2", "qwen2-q8_0"),
        ("qwen3", "qwen3-f16"),
        ("qwen3-yarn", "qwen3-yarn-q8_0"),
        ("qwen3moe", "qwen3moe-q8_0"),
        ("phi3-window", "phi3-window-q8_0"),
    ] {
        let hf = open(hf_name).config().clone();
        let gguf = open(gguf_name).config().clone();
        let (dtype, eps, bos) = (hf.dtype, hf.rms_norm_eps, hf.bos_token_id);
        assert!((gguf.rms_norm_eps - eps).abs() < 1e-9);
        assert_eq!(
            ModelConfig {
                dtype,
                rms_norm_eps: eps,
                bos_token_id: bos,
                ..gguf
            },
            hf,
            "{gguf_name}"
        );
    }
}

#[test]
fn frequencies_of_a_gguf_equal_those_of_its_directory() {
    for (hf_name, gguf_name) in [
        ("llama2", "llama2-q8_0"),
        ("llama31", "llama31-f16"),
        ("qwen3-yarn", "qwen3-yarn-q8_0"),
        ("phi4-longrope", "phi4-longrope-f16"),
    ] {
        for max_len in [32, 128] {
            let hf = open(hf_name).config().rope.frequencies(max_len);
            let gguf = open(gguf_name).config().rope.frequencies(max_len);
            assert!(
                (hf.attention_factor - gguf.attention_factor).abs() < 1e-6,
                "{gguf_name}"
            );
            assert_eq!(hf.inv_freq.len(), gguf.inv_freq.len(), "{gguf_name}");
            for (a, b) in hf.inv_freq.iter().zip(&gguf.inv_freq) {
                assert!((a - b).abs() / a < 1e-5, "{gguf_name}: {a} and {b}");
            }
        }
    }
}

#[test]
fn fused_projections_are_cut_in_the_order_q_k_v_and_gate_up() {
    let checkpoint = open("phi3-window");
    let layer = |p| checkpoint.param(Param::Layer(1, p)).unwrap().unwrap();
    let [q, k, v] = [LayerParam::Wq, LayerParam::Wk, LayerParam::Wv].map(layer);
    assert_eq!(q.name, "model.layers.1.self_attn.qkv_proj.weight");
    assert_eq!([q.name, q.name], [k.name, v.name]);
    assert_eq!(q.data.as_ptr_range().end, k.data.as_ptr());
    assert_eq!(k.data.as_ptr_range().end, v.data.as_ptr());
    let [gate, up] = [LayerParam::WGate, LayerParam::WUp].map(layer);
    assert_eq!(gate.data.as_ptr_range().end, up.data.as_ptr());
}

#[test]
fn a_tied_head_is_the_embedding() {
    for name in ["llama31", "llama31-f16", "qwen3", "phi4-longrope-f16"] {
        let checkpoint = open(name);
        let view = |p| checkpoint.param(p).unwrap().unwrap().data.as_ptr();
        assert_eq!(view(Param::LmHead), view(Param::TokenEmbedding), "{name}");
        assert!(
            Param::all(checkpoint.config()).all(|p| p != Param::LmHead),
            "{name}"
        );
    }
    let untied = open("llama2");
    let view = |p| untied.param(p).unwrap().unwrap().data.as_ptr();
    assert_ne!(view(Param::LmHead), view(Param::TokenEmbedding));
}

#[test]
fn parameters_a_model_does_not_have_are_none() {
    let absent = |name: &str, param| open(name).param(Param::Layer(0, param)).unwrap().is_none();
    assert!(absent("llama2", LayerParam::Bq));
    assert!(absent("llama2", LayerParam::QNorm));
    assert!(absent("llama2", LayerParam::Router));
    assert!(absent("qwen3moe", LayerParam::WGate));
    assert!(absent("qwen3moe", LayerParam::ExpertUp(5)));
    assert!(!absent("qwen3moe", LayerParam::ExpertUp(4)));
    assert!(!absent("qwen3moe-mixed", LayerParam::WGate));
    assert!(absent("qwen3moe-mixed", LayerParam::Router));
    assert!(!absent("qwen2", LayerParam::Bk));
}

#[test]
fn variants_are_read_from_the_config() {
    let llama31 = open("llama31").config().clone();
    assert_eq!(llama31.eos_token_ids, [2, 3]);
    assert_eq!(llama31.dtype, Dtype::F32);
    assert!(matches!(
        llama31.rope.scaling,
        RopeScaling::Llama3 { factor: 4.0, .. }
    ));

    let window = open("qwen2-window").config().clone();
    assert_eq!([window.window(0), window.window(1)], [None, Some(20)]);

    let phi = open("phi4-longrope").config().clone();
    assert_eq!(phi.architecture, Architecture::Phi3);
    assert_eq!((phi.head_dim, phi.rope.rotary_dim), (16, 12));

    let mixed = open("qwen3moe-mixed").config().clone();
    assert!(mixed.layer_moe(0).is_none());
    assert!(!mixed.layer_moe(1).unwrap().norm_topk_prob);

    let gguf = open("llama31-f16");
    assert_eq!(gguf.config().eos_token_ids, [2, 3]);
    assert_eq!(gguf.config().rope.pairing, Pairing::Interleaved);
    assert!(matches!(
        gguf.config().rope.scaling,
        RopeScaling::Divisors(_)
    ));
    let metadata = gguf.gguf().unwrap();
    assert_eq!(metadata.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(metadata.u64("no.such.key").unwrap(), None);
}

#[test]
fn mixed_quantisation_keeps_each_tensors_type() {
    let legacy = open("llama2-legacy");
    let dtype = |p| legacy.param(Param::Layer(0, p)).unwrap().unwrap().dtype;
    assert_eq!(dtype(LayerParam::Wq), Dtype::Q4_0);
    assert_eq!(dtype(LayerParam::Wk), Dtype::Q4_1);
    assert_eq!(dtype(LayerParam::Wv), Dtype::Q5_0);
    assert_eq!(dtype(LayerParam::Wo), Dtype::Q5_1);
    assert_eq!(dtype(LayerParam::WGate), Dtype::Bf16);
    let k = open("llama-k");
    let dtype = |p| k.param(Param::Layer(0, p)).unwrap().unwrap().dtype;
    assert_eq!(dtype(LayerParam::Wq), Dtype::Q4K);
    assert_eq!(dtype(LayerParam::Wk), Dtype::Q5K);
    assert_eq!(dtype(LayerParam::Wv), Dtype::Q6K);
}
