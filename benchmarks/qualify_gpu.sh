#!/usr/bin/env bash
# Everything that only a CUDA machine can tell: tests, sanitizer, Plans, benchmarks.
set -uo pipefail

usage() {
    cat <<'TEXT'
usage: benchmarks/qualify_gpu.sh OUT [STEP ...]

Runs each step even where one before it failed, and says at the end which did. What a step prints is
in OUT/STEP.log, results and Plans are OUT/*.json.

steps (all by default):
  tests       the tests marked gpu, four files at a time where pytest-xdist is installed
  sanitizer   memcheck, racecheck and synccheck on small frames
  tune        drivert tune of both networks in fp32 and fp16, then drivert bench sparse with the Plan
  precisions  drivert qualify: every precision beside fp32
  sparse      the sparse engine beside its peers
  frame       the whole detector, from points or a message to boxes
  camera      the camera model, replayed from CUDA graphs and kernel by kernel
  soak        memory over 2000 clouds of all sizes
  bevpool     the pooling of camera features beside other ways, and the softmax before or inside it
  grid        the operators on NanoVDB grids beside zlib, and those of OpenVDB where OPENVDB is set

environment:
  PYTHON         interpreter with torch for CUDA (python3)
  DRIVERT_DATA   real frames (../shared/data); without them, simulated ones
  OPENVDB        NanoVDB headers to compile against, as 'before=FOLDER after=FOLDER' (none)
  COMMIT         written into the results (that of the checkout)
  TUNE_SECONDS   time limit of each search (110)
TEXT
}

if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
    usage
    exit $(($# < 1))
fi
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
shift
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
data=${DRIVERT_DATA:-../shared/data}
commit=${COMMIT:-}
drivert=("$python" -m driveRT_ros)
pytest=("$python" -m pytest -q -m gpu -p no:cacheprovider)

# Without a usable GPU the tests would be skipped, which is no pass.
cuda_works() { "$python" -c 'import torch; torch.zeros(1, device="cuda")'; }

tests() {
    cuda_works || return 1
    local beside=()
    if "$python" -c 'import xdist' 2>/dev/null; then beside=(-n 4 --dist loadfile); fi
    # A file whose packages are missing fails the step and keeps no other from running.
    "${pytest[@]}" "${beside[@]}" --continue-on-collection-errors \
        test/kernels test/core test/train test/commands
}

sanitizer() {
    cuda_works || return 1
    # Asking for the parameters of a kernel ends in an error by design, which is no fault.
    local check=(compute-sanitizer --report-api-errors no --error-exitcode 99)
    "${check[@]}" --tool memcheck "${pytest[@]}" test/kernels/test_gpu_backbone.py -k overflow
    local memory=$?
    "${check[@]}" --tool racecheck "${pytest[@]}" test/kernels/test_coordmap.py || memory=1
    # What has barriers, warps that share a queue, or a launch that begins before the last one ends.
    local tool some="any_number_of_rows or tensor_cores or best_are_kept or limits_of_suppression"
    some+=" or peaks_of_the_heat"
    some+=" or crc_of_any or fold_over_three or statistics_are or every_byte or pooling_logits"
    some+=" or same_launch or one_message_or_eight"
    # Tensors that torch cuts out of one block would hide what is read behind their ends.
    local -x PYTORCH_NO_CUDA_MEMORY_CACHING=1
    for tool in memcheck racecheck synccheck; do
        "${check[@]}" --tool "$tool" "${pytest[@]}" -k "$some" test/kernels/test_heads.py \
            test/kernels/test_grid_ops.py test/kernels/test_row_crcs.py \
            test/kernels/test_depth_softmax.py || memory=1
    done
    return $memory
}

tune() {
    local precision plan failed=0
    for precision in fp32 fp16; do
        plan=$out/plan-$precision.json
        "${drivert[@]}" tune --precision "$precision" --time-limit "${TUNE_SECONDS:-110}" \
            --output "$plan" || failed=1
        "${drivert[@]}" tune --camera --precision "$precision" --output "$plan" || failed=1
        "${drivert[@]}" bench sparse --plan "$plan" --output "$out/tuned-$precision.json" || failed=1
    done
    return $failed
}

precisions() {
    local plan=$out/plan-fp16.json
    [[ -f $plan ]] || "${drivert[@]}" tune --precision fp16 --time-limit 10 --output "$plan" || return 1
    "${drivert[@]}" qualify --plan "$plan" --sim 3 --scenes 40 --jobs 0
}

sparse() {
    "$python" benchmarks/bench_sparse_gpu.py --data "$data" --commit "$commit" --rounds 4 \
        --frames C,B,A,S10 --precisions fp32,fp32x3,tf32,fp16 --output "$out/sparse.json"
}

frame() { "${drivert[@]}" bench frame --output "$out/frame.json"; }

camera() { "${drivert[@]}" bench camera --output "$out/camera.json"; }

soak() { "${drivert[@]}" bench soak --output "$out/soak.json"; }

bevpool() {
    "$python" benchmarks/bench_bevpool.py --commit "$commit" --output "$out/bevpool.json"
    local pooling=$?
    "$python" benchmarks/bench_depth_softmax.py --commit "$commit" \
        --output "$out/poolsoftmax.json" && return $pooling
}

grid() {
    local peer options=()
    for peer in ${OPENVDB:-}; do options+=(--openvdb "$peer"); done
    "$python" benchmarks/bench_grid.py --sizes 1,7.4,69,506 --commit "$commit" \
        --output "$out/grid.json" "${options[@]}"
}

[[ $# -gt 0 ]] || set -- tests sanitizer tune precisions sparse frame camera soak bevpool grid
for step in "$@"; do
    if [[ ! $step =~ ^(tests|sanitizer|tune|precisions|sparse|frame|camera|soak|bevpool|grid)$ ]]; then
        echo "Unknown step '$step'; see --help." >&2
        exit 2
    fi
done
failed=0
for step in "$@"; do
    begin=$SECONDS
    if "$step" >"$out/$step.log" 2>&1; then verdict=passed; else verdict=FAILED failed=1; fi
    lines+=$(printf '%-10s %s in %d s' "$step" "$verdict" $((SECONDS - begin)))$'\n'
    tail -n 25 "$out/$step.log"
done
printf '%s' "$lines"
exit $failed
