//! A ring with claimed requests that are masked, and a front end's hand on their masks.

use std::sync::Arc;

use izar_kernels::{Device, MappedRegion};
use izar_ring::{
    EngineInfo, EngineState, MASK_BUFFERS, MaskWord, RingGeometry, RingOptions, SlotEvent,
    mask_words,
};
use izar_transport::client::{ClientOptions, RequestHandle, RingClient, Submission};
use izar_transport::{EngineEnd, InProcess, TokenMasks, Transport};

/// See the module documentation.
pub struct MaskedRing {
    transport: Arc<InProcess>,
    /// By request.
    pub masks: Vec<TokenMasks>,
    vocab_size: u32,
    _requests: Vec<RequestHandle>,
    _client: RingClient,
    engine: EngineEnd,
}

impl MaskedRing {
    /// `num_requests` of them, for masks of `vocab_size` tokens.
    pub fn new(vocab_size: usize, num_requests: u32) -> Self {
        let geometry = RingGeometry {
            num_slots: num_requests,
            ..RingGeometry::default()
        };
        let options = RingOptions {
            geometry,
            ..RingOptions::default()
        };
        let (transport, mut engine) = InProcess::create(&options).unwrap();
        let vocab_size = vocab_size as u32;
        engine.describe(&EngineInfo {
            max_model_len: 1000,
            vocab_size,
            block_size: 16,
            num_kv_blocks: 1000,
            max_num_seqs: num_requests,
            max_num_batched_tokens: 64,
            model_name: "masks",
            hardware: "",
            placement: "",
        });
        engine.set_engine_state(EngineState::Ready, None);
        let shared = Arc::clone(&transport) as Arc<dyn Transport>;
        let client = RingClient::connect(shared, ClientOptions::default()).unwrap();
        let submission = Submission {
            masked_vocab_size: vocab_size,
            ..Submission::new(&[0], 1)
        };
        let requests = (0..num_requests).map(|_| client.submit(&submission).unwrap());
        let requests: Vec<RequestHandle> = requests.collect();
        let mut slots = Vec::new();
        engine.scan(&mut |event| {
            if let SlotEvent::Submitted { slot } = event {
                slots.push(slot);
            }
        });
        let masks = slots.into_iter().map(|slot| {
            engine.claim(slot, 1).expect("a sound request");
            engine.token_masks(slot).expect("a masked request")
        });
        let masks: Vec<TokenMasks> = masks.collect();
        assert_eq!(masks.len(), num_requests as usize);
        Self {
            masks,
            transport,
            vocab_size,
            _requests: requests,
            _client: client,
            engine,
        }
    }

    /// The part of the ring that a device reads, mapped into one.
    pub fn map(&self, device: &Device) -> MappedRegion {
        let len = self.engine.layout().input_arena().end as usize;
        let owner = Box::new(Arc::clone(&self.transport));
        // SAFETY: the ring is as long as its layout says and stays where it is while its owner lives.
        unsafe { MappedRegion::register(device, self.transport.base(), len, owner) }.unwrap()
    }

    /// Writes a mask of `request` to buffer `buffer`; what lies beyond the vocabulary means nothing.
    pub fn write_mask(&self, request: usize, buffer: u32, mask: &[u32]) {
        assert!(buffer < MASK_BUFFERS);
        let mut bytes: Vec<u8> = bytemuck::cast_slice(mask).to_vec();
        bytes.resize(8 * mask_words(self.vocab_size) as usize, 0xFF);
        let offset = u64::from(buffer) * bytes.len() as u64;
        let area = self.masks[request].source().area_offset();
        self.transport.write(area + offset, &bytes).unwrap();
    }

    /// Says what has been delivered to `request`; masks written before are seen with it.
    pub fn write_word(&self, request: usize, word: MaskWord) {
        let offset = self.masks[request].source().word_offset();
        self.transport.write_flag(offset, word.pack()).unwrap();
    }
}
