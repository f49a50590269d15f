//! A simulated device with a scheduler on it: memory laid out as the engine does, `block.cpp` compiled and run on a thread.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use izar_policy::Config;
use izar_resident::{Addresses, CORE_BYTES, Core, StepTimes};
use izar_ring::{EngineInfo, LeaseIdx, RingGeometry, RingLayout, RingOptions, SlotIdx};
use izar_transport::InProcess;
use izar_transport::client::{ClientOptions, RingClient};

/// Token ids are below this.
pub const VOCAB_SIZE: u32 = 1000;
/// Start of [`hash_token`].
pub const HASH_START: u64 = 0xCBF2_9CE4_8422_2325;
const LIST_CAPACITY: usize = 64;
const CONTROL_WORDS: usize = 114;
const STATUS_WORDS: usize = 32;
/// Words of the status.
const STOP: usize = 0;
const HAS_ENDED: usize = 17;
const ERROR: usize = 18;
const NUM_RELAUNCHES: usize = 21;
const NUM_RETRIES: usize = 22;

/// Continues the hash of a sequence; `block.cpp` has the same.
pub fn hash_token(hash: u64, token: u32) -> u64 {
    (hash ^ (u64::from(token) + 1)).wrapping_mul(0x100_0000_01B3)
}

/// The token that follows.
pub fn next_token(hash: u64) -> u32 {
    ((hash >> 20) % u64::from(VOCAB_SIZE)) as u32
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Mutation {
    None = 0,
    GateIgnoresDone = 1,
    DoneIsEarly = 2,
}

/// A simulated scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub num_blocks: u32,
    pub launch_window: u32,
    /// Launches that the device allows one execution.
    pub launch_limit: u32,
    pub mutation: Mutation,
}

impl Options {
    /// A pool that is too small for all, and windows that end often.
    pub fn small(seed: u64) -> Self {
        Self {
            seed,
            num_blocks: 12,
            launch_window: 5,
            launch_limit: 5,
            mutation: Mutation::None,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub num_relaunches: u64,
    pub num_retries: u64,
    pub num_preemptions: u64,
    pub prefix_hit_tokens: u64,
}

/// Mirrors `IzarSimulation`, whose arguments are words of 8 bytes.
#[repr(C)]
struct Given {
    args: [u64; NUM_ARGS],
    open: unsafe extern "C" fn(*mut Core, u64),
    idle: unsafe extern "C" fn(*mut Core, u64),
    look: unsafe extern "C" fn(*mut Core, *const u32, u32, u64) -> u32,
    admit: unsafe extern "C" fn(*mut Core, u32, u64),
    plan: unsafe extern "C" fn(*mut Core, u64) -> u32,
    publish: unsafe extern "C" fn(*mut Core, u64, u32, *const StepTimes, u64),
    close: unsafe extern "C" fn(*mut Core, *const u32, u32, u64),
    kv: u64,
    seed: u64,
    num_buckets: u32,
    launch_limit: u32,
    mutation: u32,
    reserved: u32,
    message: u64,
}

/// 376 bytes of `IzarResidentArgs`.
const NUM_ARGS: usize = 47;

/// Zeroed memory on a page of its own, freed when the last owner is gone.
struct Pages {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: owns memory; who shares it uses atomics or takes turns.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(bytes.max(8), 4096).expect("a sane size");
        // SAFETY: not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        Arc::new(Self { base, layout })
    }

    fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(8 * index < self.layout.size());
        // SAFETY: in bounds, aligned, alive as long as `self`; accessed atomically by both sides.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A running scheduler.
pub struct Simulation {
    transport: Arc<InProcess>,
    status: Arc<Pages>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

type Simulate = unsafe extern "C" fn(*mut Given) -> c_int;

/// Compiles the simulation once and finds its entry.
fn simulate() -> Simulate {
    static ENTRY: OnceLock<usize> = OnceLock::new();
    let address = *ENTRY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/block/block.cpp");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("block-{}.so", std::process::id()));
        let status = Command::new("c++")
            .args([
                "-std=c++20",
                "-O1",
                "-ffp-contract=off",
                "-Wall",
                "-Werror",
                "-Wno-unknown-pragmas",
            ])
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source)
            .status()
            .expect("a C++ compiler: the CUDA compiler needs one, too");
        assert!(status.success(), "block.cpp does not compile");
        let path = CString::new(library.to_str().expect("a printable path")).expect("no zero byte");
        // SAFETY: a library of our own without initialisers; it stays loaded.
        let entry = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
            libc::dlsym(handle, c"izar_simulate".as_ptr())
        };
        // The loaded library needs no name.
        let _ = std::fs::remove_file(&library);
        assert!(!entry.is_null());
        entry as usize
    });
    // SAFETY: the entry's type in block.cpp.
    unsafe { std::mem::transmute::<*mut c_void, Simulate>(address as *mut c_void) }
}

fn policy(options: &Options) -> Config {
    let mut config = Config::new(options.num_blocks, 6, 24, 96);
    config.num_slots = 64;
    config.num_hash_pages = 128;
    config
}

impl Simulation {
    /// Lays everything out and starts the scheduler.
    pub fn start(options: Options) -> Self {
        let config = policy(&options);
        config.validate().expect("sane sizes");
        let ring_options = RingOptions {
            geometry: RingGeometry {
                num_slots: config.num_slots,
                num_leases: 1,
                input_arena_bytes: 256 << 10,
                output_arena_bytes: 1 << 20,
            },
            ..RingOptions::default()
        };
        let layout = RingLayout::new(ring_options.geometry).expect("a sane geometry");
        let ring = Pages::new(layout.total_bytes() as usize);
        // SAFETY: zeroed pages that the owner keeps.
        let (transport, mut engine) = unsafe {
            InProcess::create_in(
                ring.base,
                layout.total_bytes() as usize,
                Box::new(Arc::clone(&ring)),
                &ring_options,
            )
        }
        .expect("room for a ring");
        engine.describe(&EngineInfo {
            max_model_len: config.max_total_len(),
            vocab_size: VOCAB_SIZE,
            block_size: config.block_size,
            num_kv_blocks: config.num_blocks,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            model_name: "simulated",
            placement: "gpu",
            hardware: "fibers",
        });
        let status = Pages::new(8 * STATUS_WORDS);
        let machine = Machine::new(
            &options,
            config,
            &ring_options,
            &layout,
            ring,
            Arc::clone(&status),
        );
        let entry = simulate();
        let thread = std::thread::spawn(move || machine.run(entry));
        Self {
            transport,
            status,
            thread: Some(thread),
        }
    }

    /// A front end.
    pub fn client(&self) -> RingClient {
        let client = RingClient::connect(self.transport.clone(), ClientOptions::default())
            .expect("a ring of this version");
        client
            .wait_ready(std::time::Duration::from_secs(20))
            .expect("a scheduler that opens");
        client
    }

    /// Why the scheduler has ended, if it has.
    pub fn is_running(&mut self) -> Result<(), String> {
        match &self.thread {
            Some(thread) if thread.is_finished() => self.join(),
            _ => Ok(()),
        }
    }

    fn join(&mut self) -> Result<(), String> {
        match self.thread.take() {
            Some(thread) => thread.join().expect("the simulation does not panic"),
            None => Ok(()),
        }
    }

    /// Tells the scheduler to end and waits until it has.
    pub fn stop(mut self) -> Result<Figures, String> {
        self.status.word(STOP).store(1, Ordering::Release);
        self.join()?;
        let read = |word| self.status.word(word).load(Ordering::Acquire);
        if (read(HAS_ENDED), read(ERROR)) != (1, 0) {
            return Err(format!(
                "ended {} with error {}",
                read(HAS_ENDED),
                read(ERROR)
            ));
        }
        Ok(Figures {
            num_relaunches: read(NUM_RELAUNCHES),
            num_retries: read(NUM_RETRIES),
            ..Figures::default()
        })
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.status.word(STOP).store(1, Ordering::Release);
        let _ = self.join();
    }
}

/// Everything the device side uses.
struct Machine {
    given: Box<Given>,
    message: Arc<Pages>,
    _pages: Vec<Arc<Pages>>,
}

impl Machine {
    fn new(
        options: &Options,
        config: Config,
        ring_options: &RingOptions,
        layout: &RingLayout,
        ring: Arc<Pages>,
        status: Arc<Pages>,
    ) -> Self {
        let mut pages = vec![Arc::clone(&ring), Arc::clone(&status)];
        let mut new = |bytes: usize| {
            let page = Pages::new(bytes);
            pages.push(Arc::clone(&page));
            page.address()
        };
        let (seqs, vocab) = (config.max_num_seqs as usize, VOCAB_SIZE as usize);
        let logprobs = new(2 * seqs * 129 * 8);
        let submitted = new(layout.output_arena().start as usize);
        let mut addresses = addresses(
            options,
            config,
            ring_options,
            layout,
            [ring.address(), submitted, logprobs],
        );
        for (bytes, address) in Addresses::array_bytes(&config)
            .into_iter()
            .zip(addresses.arrays())
        {
            *address = new(bytes);
        }
        let core = new(CORE_BYTES);
        // SAFETY: zeroed memory of the sizes that the addresses were made for.
        let made = unsafe { izar_resident::izar_resident_init(core as *mut _, &addresses) };
        assert_eq!(made, 1, "sizes that go together");
        let (execs, decode, mixed, num_buckets) = buckets(&config, &mut new);
        let plan_words = 16
            + seqs * (8 + config.max_blocks_per_seq() as usize)
            + config.max_num_batched_tokens as usize;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let slot = SlotIdx(0);
        let mask_words = vocab.div_ceil(32);
        let args = vec![
            core,
            new(8 * CONTROL_WORDS),
            status.address(),
            ring.address(),
            submitted,
            layout.lease_offset(LeaseIdx(0)),
            layout.submit_offset(slot),
            layout.cancel_offset(slot),
            layout.recycle_offset(slot),
            layout.progress_offset(slot),
            layout.request_offset(slot),
            layout.input_arena().start,
            layout.output_arena().start,
            layout.mask_offset(slot),
            addresses.events,
            addresses.live,
            addresses.samples,
            addresses.plan_header,
            addresses.plan_entries,
            addresses.block_tables,
            new(4 * config.num_slots as usize),
            new(8 * seqs),
            new(4 * plan_words),
            new(4 * plan_words),
            new(64),
            new(64),
            execs,
            decode,
            mixed,
            new(2 * seqs * 16),
            new(4 * 1024),
            new(seqs * 128),
            new(4 * seqs * LIST_CAPACITY),
            new(4 * seqs * mask_words),
            new(4 * seqs * mask_words),
            new(4 * seqs * vocab),
            new(4 * seqs * LIST_CAPACITY),
            new(4 * seqs),
            new(4 * seqs * mask_words),
            new(4 * seqs),
            pair(VOCAB_SIZE, mask_words as u32),
            pair(LIST_CAPACITY as u32, 0),
            0,
            pair(1024, config.num_slots),
            pair(1, config.max_num_seqs),
            pair(config.max_blocks_per_seq(), 129),
            pair(options.launch_window, 0),
        ];
        let message = Pages::new(256);
        let given = Box::new(Given {
            args: args.try_into().expect("every argument"),
            open: izar_resident::izar_resident_open,
            idle: izar_resident::izar_resident_idle,
            look: izar_resident::izar_resident_look,
            admit: izar_resident::izar_resident_admit,
            plan: izar_resident::izar_resident_plan,
            publish: izar_resident::izar_resident_publish,
            close: izar_resident::izar_resident_close,
            kv: new(4 * 16 * config.num_blocks as usize),
            seed: options.seed,
            num_buckets,
            launch_limit: options.launch_limit,
            mutation: options.mutation as u32,
            reserved: 0,
            message: message.address(),
        });
        Self {
            given,
            message,
            _pages: pages,
        }
    }

    fn run(mut self, entry: Simulate) -> Result<(), String> {
        // SAFETY: everything that the arguments name is owned by `self` or its pages' other owners.
        if unsafe { entry(&mut *self.given) } == 0 {
            return Ok(());
        }
        // SAFETY: 256 zeroed bytes, of which `vsnprintf` leaves the last one zero.
        let message = unsafe { CStr::from_ptr(self.message.base.as_ptr().cast::<c_char>()) };
        Err(message.to_string_lossy().into_owned())
    }
}

/// Sizes, and addresses of `[ring, submitted, logprobs]`.
fn addresses(
    options: &Options,
    config: Config,
    ring_options: &RingOptions,
    layout: &RingLayout,
    [ring, submitted, logprobs]: [u64; 3],
) -> Addresses {
    // SAFETY: numbers and two switches, for which zeroes are values.
    let unset: Addresses = unsafe { std::mem::zeroed() };
    Addresses {
        config,
        seed: options.seed,
        ring,
        ring_bytes: layout.total_bytes(),
        submitted,
        input_arena_bytes: ring_options.geometry.input_arena_bytes,
        output_arena_bytes: ring_options.geometry.output_arena_bytes,
        lease_timeout_ns: ring_options.lease_timeout_ns,
        mask_timeout_ns: 1_000_000_000,
        num_leases: 1,
        vocab_size: VOCAB_SIZE,
        list_capacity: LIST_CAPACITY as u32,
        logprobs,
        ..unset
    }
}

/// Handles of the graphs, and the tables that choose among them: four tokens to a bucket.
fn buckets(config: &Config, new: &mut dyn FnMut(usize) -> u64) -> (u64, u64, u64, u32) {
    let (seqs, tokens) = (config.max_num_seqs, config.max_num_batched_tokens);
    let num_decode = seqs.div_ceil(4);
    let num_buckets = num_decode + tokens.div_ceil(4);
    let execs = new(16 * num_buckets as usize);
    for index in 0..2 * u64::from(num_buckets) {
        // SAFETY: inside the array; nobody else uses it yet. So below.
        unsafe { (execs as *mut u64).add(index as usize).write(index + 1) };
    }
    let mut table = |len: u32, first: u32| {
        let address = new(2 * len as usize);
        for token in 0..len {
            // SAFETY: see above.
            unsafe {
                (address as *mut u16)
                    .add(token as usize)
                    .write((first + token / 4) as u16)
            };
        }
        address
    };
    let (decode, mixed) = (table(seqs, 0), table(tokens, num_decode));
    (execs, decode, mixed, num_buckets)
}
