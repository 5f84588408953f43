// SPDX-License-Identifier: GPL-2.0-only
/* Nobody outside is told of devices that come and go. */
#include <linux/kobject.h>

int kobject_uevent_env(struct kobject *kobj, enum kobject_action action, char *envp[])
{
	return 0;
}

int kobject_uevent(struct kobject *kobj, enum kobject_action action)
{
	return 0;
}

int add_uevent_var(struct kobj_uevent_env *env, const char *format, ...)
{
	return 0;
}
