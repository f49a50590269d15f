//! What layers with a mixture of experts need besides their weights: the router's output and the workspace of
//! [`moe_ffn`](izar_kernels::moe_ffn). One set, used by every such layer in turn.

use izar_kernels::{
    CudaError, DeviceBuffer, DeviceWord, LaunchError, Matrix, MoeChoice, MoeFfn, MoeShape,
    MoeWorkspace, Norm, StepMeta, Stream, moe_ffn,
};
use izar_model::ModelConfig;

use super::half::StepLimits;

/// See the module documentation.
pub(super) struct Experts {
    workspace: MoeWorkspace,
    /// `[tokens, experts]`.
    router_logits: DeviceBuffer<f32>,
    shape: MoeShape,
    bytes: u64,
}

/// A layer's weights and where it reads and writes.
pub(super) struct ExpertLayer<'a> {
    /// What decides on the experts.
    pub(super) choice: MoeChoice<'a>,
    /// `[experts * 2 * moe_intermediate, hidden]`.
    pub(super) gate_up: Matrix<'a>,
    /// `[experts * hidden, moe_intermediate]`.
    pub(super) down: Matrix<'a>,
    /// `[tokens, hidden]`.
    pub(super) x: Matrix<'a>,
    /// `[tokens, hidden]`, added to.
    pub(super) residual: Matrix<'a>,
    /// The norm of the finished residual stream, and where it goes.
    pub(super) normed: Option<(Norm<'a>, Matrix<'a>)>,
    /// Of the step that is running.
    pub(super) meta: &'a DeviceBuffer<StepMeta>,
}

impl Experts {
    /// Nothing for a model without experts.
    pub(super) fn new(
        stream: &Stream,
        config: &ModelConfig,
        limits: StepLimits,
    ) -> Result<Option<Self>, LaunchError> {
        let Some(moe) = &config.moe else {
            return Ok(None);
        };
        let shape = MoeShape {
            num_experts: moe.num_experts as u32,
            top_k: moe.num_experts_per_tok as u32,
            hidden: config.hidden_size as u32,
            intermediate: moe.moe_intermediate_size as u32,
            normalise: moe.norm_topk_prob,
        };
        let device = *stream.device();
        let max_tokens = limits.max_num_tokens as u32;
        let router_len = limits.max_num_tokens * moe.num_experts;
        let workspace = MoeWorkspace::new(&device, stream, shape, max_tokens)?;
        let num_sms = device.num_multiprocessors()?;
        Ok(Some(Self {
            workspace,
            router_logits: DeviceBuffer::new(&device, router_len)?,
            shape,
            bytes: (MoeWorkspace::bytes(&shape, max_tokens, num_sms) + 4 * router_len) as u64,
        }))
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The router's output for the first `tokens` tokens.
    pub(super) fn router_logits(&self, tokens: u32) -> Matrix<'_, f32> {
        Matrix::dense(&self.router_logits, tokens, self.shape.num_experts)
            .expect("a bucket is no larger than the largest step")
    }

    /// Records a layer.
    pub(super) fn record(
        &self,
        stream: &Stream,
        layer: &ExpertLayer<'_>,
    ) -> Result<(), LaunchError> {
        let ffn = MoeFfn {
            choice: layer.choice,
            x: layer.x,
            gate_up: layer.gate_up,
            down: layer.down,
            y: layer.residual,
            normed: layer.normed,
            tokens_here: DeviceWord::new(layer.meta, std::mem::offset_of!(StepMeta, num_tokens)),
        };
        moe_ffn(stream, &ffn, &self.workspace)
    }

    /// Waits for the stream and says how many experts the tokens of the last layer that ran chose together.
    pub(super) fn num_distinct(&self, stream: &Stream) -> Result<u32, CudaError> {
        self.workspace.num_distinct_experts(stream)
    }
}
