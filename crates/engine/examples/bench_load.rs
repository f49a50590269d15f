//! Times bringing a model's weights to the device: `bench_load [FOLDER]`.
//!
//! Without a folder it writes checkpoints of Llama-3-8B's layers (4 of them, in bf16, f16 and f32) to the system's temporary folder, which leaves
//! them in the page cache, and removes them afterwards. Each is loaded three times. Last come made-up weights of the whole model.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use izar_engine::cuda::weights::CudaWeights;
use izar_kernels::{Device, Stream};
use izar_model::{Checkpoint, LoadFormat};
use serde_json::{Map, Value, json};

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    let stream = Stream::new(&device)?;
    println!("{:>8} {:>7} {:>7} {:>7}", "weights", "GB", "s", "GB/s");
    if let Some(folder) = std::env::args().nth(1) {
        for _ in 0..3 {
            time(&stream, "files", &Checkpoint::open(Path::new(&folder))?)?;
        }
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("izar-bench-load-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let outcome = time_all(&stream, &folder);
    fs::remove_dir_all(&folder)?;
    outcome
}

fn time_all(stream: &Stream, folder: &Path) -> Result<(), Box<dyn Error>> {
    for (name, torch_name, bytes) in [
        ("BF16", "bfloat16", 2),
        ("F16", "float16", 2),
        ("F32", "float32", 4),
    ] {
        fs::write(
            folder.join("config.json"),
            config(4, torch_name).to_string(),
        )?;
        write_tensors(&folder.join("model.safetensors"), name, bytes)?;
        for _ in 0..3 {
            time(stream, name, &Checkpoint::open(folder)?)?;
        }
    }
    fs::write(
        folder.join("config.json"),
        config(32, "bfloat16").to_string(),
    )?;
    let made_up = Checkpoint::open_with(folder, LoadFormat::Dummy)?;
    time(stream, "dummy", &made_up)
}

fn time(stream: &Stream, name: &str, checkpoint: &Checkpoint) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let weights = CudaWeights::load(stream, checkpoint, &mut |_, _| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let gigabytes = checkpoint.total_bytes() as f64 / 1e9;
    println!(
        "{name:>8} {gigabytes:7.2} {seconds:7.3} {:7.2}",
        gigabytes / seconds
    );
    drop(weights);
    Ok(())
}

fn config(layers: usize, dtype: &str) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": dtype,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": layers,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "tie_word_embeddings": false, "hidden_act": "silu",
    })
}

/// The tensors of `config(4, _)`, pseudo-random.
fn write_tensors(path: &Path, dtype: &str, element_bytes: usize) -> std::io::Result<()> {
    let layer = [
        ("self_attn.q_proj", 4096, 4096),
        ("self_attn.k_proj", 1024, 4096),
        ("self_attn.v_proj", 1024, 4096),
        ("self_attn.o_proj", 4096, 4096),
        ("mlp.gate_proj", 14336, 4096),
        ("mlp.up_proj", 14336, 4096),
        ("mlp.down_proj", 4096, 14336),
    ];
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![128_256, 4096]),
        ("lm_head.weight".to_owned(), vec![128_256, 4096]),
        ("model.norm.weight".to_owned(), vec![4096]),
    ];
    for i in 0..4 {
        let name = |part: &str| format!("model.layers.{i}.{part}.weight");
        tensors.extend(layer.map(|(part, rows, cols)| (name(part), vec![rows, cols])));
        for part in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push((name(part), vec![4096]));
        }
    }
    let (mut header, mut offset) = (Map::new(), 0_usize);
    for (name, shape) in tensors {
        let end = offset + shape.iter().product::<usize>() * element_bytes;
        header.insert(
            name,
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] }),
        );
        offset = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 1_u64;
    let block: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Small numbers in any of the three types.
        [(state >> 40) as u8, 0x2C]
    })
    .take(1 << 20)
    .flatten()
    .collect();
    for first in (0..offset).step_by(block.len()) {
        file.write_all(&block[..block.len().min(offset - first)])?;
    }
    file.flush()
}
