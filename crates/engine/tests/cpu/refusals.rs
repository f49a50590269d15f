//! What the CPU back end refuses to load, and how it says so.

use std::path::Path;

use izar_engine::cpu::{CpuModel, CpuOptions};
use izar_model::Checkpoint;

fn refusal(change: impl Fn(&mut izar_model::ModelConfig, &mut CpuOptions)) -> String {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/llama2");
    let mut config = Checkpoint::open(&fixture).unwrap().config().clone();
    let mut options = CpuOptions::new(&config);
    change(&mut config, &mut options);
    match CpuModel::load(&Checkpoint::dummy(config), options, &mut |_, _| {}) {
        Ok(_) => panic!("the model was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn heads_wider_than_the_kernels_take_are_refused() {
    let message = refusal(|config, _| config.head_dim = 512);
    assert_eq!(
        message,
        "heads of 512 elements are not supported on the CPU; at most 256 are"
    );
}

#[test]
fn block_size_off_the_cache_layout_is_refused() {
    let message = refusal(|_, options| options.block_size = 8);
    assert_eq!(
        message,
        "block size 8 is not supported on the CPU; use a multiple of 16"
    );
}
