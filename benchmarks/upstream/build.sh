#!/usr/bin/env bash
# SGLang's swap-in kernel as a library for benchmarks/swap_in.py --sglang, from published wheels; no GPU is needed.
#
#     benchmarks/upstream/build.sh FOLDER     → FOLDER/sglang_swap_in.so, sm_90
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
python3 -m pip download -q --no-deps --only-binary=:all: -d wheels sglang==0.5.23 apache-tvm-ffi \
    nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.* \
    nvidia-cuda-cccl==13.0.*
for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" unpacked; done
cuda=unpacked/nvidia/cu13
chmod -R u+x "$cuda"/bin "$cuda"/nvvm/bin
jit=unpacked/sglang/kernels/jit
"$cuda"/bin/nvcc -std=c++20 -O3 -arch=sm_90 -DSGL_CUDA_ARCH=900 --expt-relaxed-constexpr -shared -Xcompiler -fPIC \
    -I"$jit" -I"$jit/include" -Iunpacked/tvm_ffi/include -L"$cuda/lib" "$here/swap_in_sglang.cu" -o sglang_swap_in.so
