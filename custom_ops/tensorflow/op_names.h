// The names of the ops. A test builds them a second time under another prefix.
#ifndef TF_ADASUM_OPS_OP_NAMES_H_
#define TF_ADASUM_OPS_OP_NAMES_H_

#ifndef TF_ADASUM_OP_PREFIX
#define TF_ADASUM_OP_PREFIX "TfAdasum"
#endif

#define TF_ADASUM_PAIRWISE_COMBINE TF_ADASUM_OP_PREFIX "PairwiseCombine"
#define TF_ADASUM_SEGMENT_GRAM TF_ADASUM_OP_PREFIX "SegmentGram"
#define TF_ADASUM_SEGMENT_WEIGHTED_SUM TF_ADASUM_OP_PREFIX "SegmentWeightedSum"

#endif  // TF_ADASUM_OPS_OP_NAMES_H_
