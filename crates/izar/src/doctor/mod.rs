//! `izar doctor`: what is here, and what Izar would use. It links to nothing that it looks for.

mod floors;
mod gpu;
mod host;
mod network;

use anyhow::Result;

/// Prints the report.
pub fn run() -> Result<()> {
    let host = host::Host::look();
    let cuda = gpu::look();
    let network = network::Network::look();
    println!("Izar {}\n", env!("CARGO_PKG_VERSION"));
    section("This machine", &host.describe());
    section("NVIDIA", &gpu::describe(&cuda));
    if let Some(device) = cuda.as_ref().ok().and_then(|cuda| cuda.devices.first()) {
        section(
            "Floor of a decode step on the first GPU",
            &floors::describe(device),
        );
    }
    section("Network and RDMA", &network.describe());
    section("What Izar would use", &verdict(&host, &cuda));
    Ok(())
}

/// The processor, for people: its name, how many of its threads compute, and with what.
pub fn processor(num_threads: Option<u32>) -> String {
    let host = host::Host::look();
    let num_threads = num_threads.map_or(host.num_cores, |num_threads| num_threads as usize);
    let (model, instructions) = (host.model(), host.best_instructions());
    format!("{model}, {num_threads} threads, {instructions}")
}

/// Name of the first GPU, if there is one.
pub fn first_gpu() -> Option<String> {
    let cuda = gpu::look().ok()?;
    cuda.devices.first().map(gpu::Device::name)
}

/// A title and lines of a name and a finding.
fn section(title: &str, lines: &[(&str, String)]) {
    println!("{title}");
    for (name, finding) in lines {
        println!("  {name:<18} {finding}");
    }
    println!();
}

fn verdict(
    host: &host::Host,
    cuda: &Result<gpu::Cuda, gpu::Missing>,
) -> Vec<(&'static str, String)> {
    let engine = match (cuda, izar_engine::cuda::probe()) {
        (_, Ok(())) => "CUDA on the first GPU (change with --device)".to_owned(),
        (Ok(cuda), Err(reason)) if !cuda.devices.is_empty() => format!("CPU: {reason}"),
        _ => "CPU".to_owned(),
    };
    let library = match izar_engine::cuda::library() {
        Ok(library) => library,
        Err(reason) => format!("none: {reason}"),
    };
    vec![
        ("engine", engine),
        ("cuBLASLt", library),
        (
            "threads",
            format!("{} (change with --threads)", host.num_cores),
        ),
        ("kernels", host.best_instructions().to_owned()),
        ("ring", "in this process".to_owned()),
        (
            "KV blocks",
            format!(
                "up to {} of memory (change with --num-kv-blocks)",
                host::gib(host.available_bytes / 4)
            ),
        ),
    ]
}
