// What the kernels of the detection heads share.
#pragma once
#include "common.cuh"

constexpr int kCandidates = 512;  // of one head at most: what one block sorts and compares
constexpr int kOutputs = 10;      // regression outputs of a row: center 2, z 1, dim 3, rot 2, vel 2

// The counts of one head, all zero when a frame begins.
struct HeadStatus {
    int candidates;         // rows and classes above the threshold, the true number
    int non_finite_heat;
    int chosen;             // of the candidates: top_k at most
    int non_finite_boxes;   // of the chosen, each counted once, under the first that applies
    int implausible_boxes;
    int out_of_range_boxes;
    int kept;               // after suppression
    int unused;
};
