// SGLang's swap-in kernel behind a C function, so that benchmarks/swap_in.py can time it beside ours.
// The kernel is compiled from a published sglang wheel (see build.sh); none of it is kept here.
#include "csrc/kvcacheio/hisparse.cuh"

namespace {

constexpr int kBlock = 960;  // the engine's default
constexpr int kTopK = 2048;

template <int kSlots>
cudaError_t launch(int batch, const int32_t *top_k, int32_t *slot_tokens, const int64_t *host_rows,
                   const int32_t *slot_rows, const void *host, void *device, int32_t *out,
                   const int64_t *request_rows, const int64_t *seq_lens, int16_t *lru, const int32_t *num_real,
                   int64_t max_tokens, int64_t page_tokens, int64_t row_bytes, cudaStream_t stream) {
  auto kernel = sglang::load_cache_to_device_buffer_kernel<kBlock, kTopK, kSlots, true, false, 1, false, false, false,
                                                           int64_t, int64_t>;
  constexpr size_t shared = sglang::SmemLayout<kTopK, kSlots>::BYTES;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  kernel<<<batch, kBlock, shared, stream>>>(top_k, slot_tokens, host_rows, slot_rows, host, nullptr, device, nullptr,
                                            out, request_rows, seq_lens, lru, num_real, kSlots + page_tokens,
                                            max_tokens, kSlots, kTopK, kTopK, page_tokens, row_bytes, nullptr, nullptr,
                                            nullptr, 0);
  return cudaGetLastError();
}

}  // namespace

extern "C" int sglang_swap_in(int slots, int batch, const int32_t *top_k, int32_t *slot_tokens,
                              const int64_t *host_rows, const int32_t *slot_rows, const void *host, void *device,
                              int32_t *out, const int64_t *request_rows, const int64_t *seq_lens, int16_t *lru,
                              const int32_t *num_real, int64_t max_tokens, int64_t page_tokens, int64_t row_bytes,
                              cudaStream_t stream) {
  auto run = slots == 4096 ? launch<4096> : slots == 8192 ? launch<8192> : nullptr;
  if (run == nullptr) return cudaErrorInvalidValue;
  return run(batch, top_k, slot_tokens, host_rows, slot_rows, host, device, out, request_rows, seq_lens, lru, num_real,
             max_tokens, page_tokens, row_bytes, stream);
}
