/* What cgroup.c and hierarchy.c share: reading and writing the small files of control groups. */
#ifndef STOKEHOLD_CGROUP_FILES_H
#define STOKEHOLD_CGROUP_FILES_H

#include "cgroup.h"

#define CG_PATH 192  /* sandbox and command ids are at most 40 characters */

int cg_write(int dir, const char *path, const char *value);                    /* 0 or -errno */
int cg_read(int dir, const char *path, char *text, unsigned size);             /* 0 or -errno; NUL-terminated */
int cg_mkdir(int dir, const char *path);
int cg_rmdir(int dir, const char *path);                                       /* a missing one is success */
bool cg_enabled(const struct cgroups *cg, enum cg_controller c);               /* lives on v2 */
void cg_names(const struct cgroups *cg, char *text, unsigned size);            /* "+memory +pids": those that live on v2 */

#endif
