// SPDX-License-Identifier: GPL-2.0-only
/* One processor, always there. */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/nodemask.h>
#include <linux/smp.h>

#include "dde.h"

struct cpuinfo_um boot_cpu_data = { .loops_per_jiffy = 1 << 20, .cache_alignment = L1_CACHE_BYTES };

struct cpumask __cpu_possible_mask = { { 1 } };
struct cpumask __cpu_online_mask = { { 1 } };
struct cpumask __cpu_present_mask = { { 1 } };
struct cpumask __cpu_active_mask = { { 1 } };
struct cpumask __cpu_dying_mask;
atomic_t __num_online_cpus = ATOMIC_INIT(1);
const DECLARE_BITMAP(cpu_all_bits, NR_CPUS) = CPU_BITS_ALL;
const unsigned long cpu_bit_bitmap[BITS_PER_LONG + 1][BITS_TO_LONGS(NR_CPUS)] = { [1] = { 1 } };
nodemask_t node_states[NR_NODE_STATES] __read_mostly = {
	[N_POSSIBLE] = NODE_MASK_ALL,
	[N_ONLINE] = { { [0] = 1UL } },
	[N_MEMORY] = { { [0] = 1UL } },
};

int __cpuhp_setup_state(enum cpuhp_state state, const char *name, bool invoke,
			int (*startup)(unsigned int cpu), int (*teardown)(unsigned int cpu),
			bool multi)
{
	return invoke && startup ? startup(0) : 0;
}

int __cpuhp_setup_state_cpuslocked(enum cpuhp_state state, const char *name, bool invoke,
				   int (*startup)(unsigned int cpu),
				   int (*teardown)(unsigned int cpu), bool multi)
{
	return __cpuhp_setup_state(state, name, invoke, startup, teardown, multi);
}

void __cpuhp_remove_state(enum cpuhp_state state, bool invoke)
{
}
