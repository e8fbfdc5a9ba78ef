/* Standard normal numbers by themselves. noise.py compiles this file. */

#include "common.h"

void bdl_normal(const U *key, I step, I from, I n, float *z) { normal(key, step, from, n, z); }

/* The bits of a group (4, LANES), for a test with the authors' own numbers */
void bdl_threefry(const U *key, I step, I group, U *out) { threefry(key, step, group, (U(*)[LANES])out); }
