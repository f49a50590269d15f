//! Compiles every `.cu` file below `cuda/` with nvcc when the feature `cuda` is on, and links the
//! result with the static CUDA runtime. Needs no GPU and no driver; libcuda is never linked.
//!
//! What is in `cuda/scheduler/`, PTX included, is compiled relocatably and linked for the device: kernels there launch graphs
//! and call functions compiled from Rust.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Hopper with its own instructions (wgmma, bulk copies).
const ARCH: &str = "arch=compute_90a,code=sm_90a";

/// Where relocatable objects go, below `OUT_DIR`.
const RELOCATABLE: &str = "relocatable";
/// The scheduler's block shares its multiprocessor with the step's kernels.
const SCHEDULER_REGISTERS: &str = "-maxrregcount=64";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cuda");
    println!("cargo:rerun-if-changed=../ring/include/izar_ring.h");
    println!("cargo:rerun-if-env-changed=IZAR_CUDA_HOME");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let home = cuda_home();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let nvcc = home.join("bin/nvcc");
    let mut objects = compile(&nvcc, &sources(Path::new("cuda")), &out);
    let linked = link_for_device(&nvcc, &objects, &out);
    objects.push(linked);
    archive(&objects, &out.join("libizar_kernels_cuda.a"));
    link(&home, &out);
}

/// The toolkit: `IZAR_CUDA_HOME`, `CUDA_HOME`, or what `scripts/cuda-setup` brought.
fn cuda_home() -> PathBuf {
    let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/cuda/nvidia/cu13");
    let candidates = ["IZAR_CUDA_HOME", "CUDA_HOME"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from);
    let found = candidates
        .chain([cached])
        .find(|home| home.join("bin/nvcc").is_file());
    found.unwrap_or_else(|| {
        panic!(
            "the feature `cuda` needs nvcc 13: run scripts/cuda-setup, or set IZAR_CUDA_HOME to a CUDA 13 toolkit"
        )
    })
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("cuda/ is part of the crate");
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("readable folder").path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path
            .extension()
            .is_some_and(|extension| extension == "cu" || extension == "ptx")
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// One nvcc process per file, all at once: each is mostly a single-threaded optimiser.
fn compile(nvcc: &Path, sources: &[PathBuf], out: &Path) -> Vec<PathBuf> {
    let running: Vec<_> = sources
        .iter()
        .map(|source| {
            let stem = source.file_stem().expect("a .cu file has a name");
            let is_ptx = source
                .extension()
                .is_some_and(|extension| extension == "ptx");
            let kind = if is_ptx { "ptx.o" } else { "o" };
            let object = out
                .join(if is_in_scheduler(source) {
                    RELOCATABLE
                } else {
                    ""
                })
                .join(stem)
                .with_extension(kind);
            fs::create_dir_all(object.parent().expect("a file in a folder"))
                .expect("OUT_DIR is ours");
            let mut command = Command::new(nvcc);
            if is_in_scheduler(source) {
                command.args(["-rdc=true", SCHEDULER_REGISTERS]);
            }
            let child = command
                .args([
                    "-O3",
                    "-std=c++17",
                    "-lineinfo",
                    "-Xcompiler=-fPIC,-Wall",
                    "-gencode",
                    ARCH,
                ])
                .args(["-Werror", "all-warnings", "-c", "-o"])
                .arg(&object)
                .arg(source)
                .spawn()
                .unwrap_or_else(|error| panic!("{} does not start: {error}", nvcc.display()));
            (source, object, child)
        })
        .collect();
    running
        .into_iter()
        .map(|(source, object, mut child)| {
            let status = child.wait().expect("nvcc was started");
            assert!(status.success(), "nvcc failed on {}", source.display());
            object
        })
        .collect()
}

fn is_in_scheduler(path: &Path) -> bool {
    path.parent()
        .is_some_and(|folder| folder.ends_with("scheduler"))
}

/// Resolves the calls between relocatable objects.
fn link_for_device(nvcc: &Path, objects: &[PathBuf], out: &Path) -> PathBuf {
    let linked = out.join("device_link.o");
    let relocatable = objects
        .iter()
        .filter(|object| object.starts_with(out.join(RELOCATABLE)));
    let status = Command::new(nvcc)
        .args(["-dlink", "-Xcompiler=-fPIC", "-gencode", ARCH, "-o"])
        .arg(&linked)
        .args(relocatable)
        .arg("-lcudadevrt")
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "nvcc cannot link the scheduler for the device"
    );
    linked
}

fn archive(objects: &[PathBuf], library: &Path) {
    // `ar` would add to what an earlier build left.
    let _ = fs::remove_file(library);
    let status = Command::new("ar")
        .arg("crs")
        .arg(library)
        .args(objects)
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ar failed: are binutils installed?"
    );
}

fn link(home: &Path, out: &Path) {
    let libraries = ["lib64", "lib", "targets/x86_64-linux/lib"];
    let runtime = libraries.iter().map(|folder| home.join(folder));
    let runtime = runtime
        .into_iter()
        .find(|folder| folder.join("libcudart_static.a").is_file());
    let runtime =
        runtime.unwrap_or_else(|| panic!("no libcudart_static.a below {}", home.display()));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-search=native={}", runtime.display());
    println!("cargo:rustc-link-lib=static=izar_kernels_cuda");
    println!("cargo:rustc-link-lib=static=cudadevrt");
    println!("cargo:rustc-link-lib=static=cudart_static");
    for library in ["stdc++", "dl", "rt", "pthread"] {
        println!("cargo:rustc-link-lib={library}");
    }
}
