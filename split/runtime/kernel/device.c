// SPDX-License-Identifier: GPL-2.0
/*
 * The device /dev/ring3-split, by which user halves attach. It is for root: whoever opens it
 * answers for a driver.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "runtime.h"

/*
 * Two threads of one file must not attach to two drivers: it would be given back to one of them
 * only.
 */
static DEFINE_MUTEX(attaching);

static long attach_file(struct file *file, const struct split_attach *attach)
{
	struct split_host *host;
	long error;

	if (file->private_data)
		return -EALREADY;
	host = split_host_find(attach->driver, attach->layout);
	if (IS_ERR(host))
		return PTR_ERR(host);
	error = split_attach(host, file);
	if (error)
		split_host_put(host);
	else
		smp_store_release(&file->private_data, host);
	return error;
}

static long attach(struct file *file, void __user *from)
{
	struct split_attach attach;
	long error;

	if (copy_from_user(&attach, from, sizeof(attach)))
		return -EFAULT;
	attach.driver[SPLIT_NAME - 1] = 0;
	if (attach.version != SPLIT_ABI_VERSION)
		return -EPROTONOSUPPORT;
	mutex_lock(&attaching);
	error = attach_file(file, &attach);
	mutex_unlock(&attaching);
	return error;
}

/* Takes the message back into a running frame; its length is what the kernel knows. */
static long take(struct split_frame *frame, u64 buffer)
{
	if (frame->state != SPLIT_RUNNING || frame->cancelled)
		return -ECANCELED;
	if (copy_from_user(frame->given, u64_to_user_ptr(buffer), frame->length))
		return -EFAULT;
	return split_apply(frame);
}

static long give(struct split_frame *frame, u64 buffer, u32 size)
{
	if (frame->length > size)
		return -EMSGSIZE;
	return copy_to_user(u64_to_user_ptr(buffer), frame->sent, frame->length) ? -EFAULT : 0;
}

static void finish(struct split_host *host, struct file *file, const struct split_next *next)
{
	struct split_frame *frame = split_frame_get(host, file, next->frame);
	bool late = true;

	/* One that was cancelled is not there any more, and its thread is late no longer. */
	if (frame) {
		mutex_lock(&frame->lock);
		late = frame->state == SPLIT_ENDED;
		split_frame_end(frame, next->result,
				next->failed || take(frame, next->buffer) != 0);
		mutex_unlock(&frame->lock);
		split_frame_put(frame);
	}
	if (late)
		atomic_dec_if_positive(&host->late);
}

static long next_upcall(struct split_host *host, struct file *file, void __user *at)
{
	struct split_next next;
	struct split_frame *frame;
	long error;

	if (copy_from_user(&next, at, sizeof(next)))
		return -EFAULT;
	if (next.frame)
		finish(host, file, &next);
	frame = split_frame_next(host, file, next.wait_ms);
	if (!frame)
		return host->gone ? -ENODEV : signal_pending(current) ? -EINTR : -EAGAIN;
	next.frame = frame->id;
	mutex_lock(&frame->lock);
	next.entry = frame->number;
	error = frame->cancelled ? -EAGAIN : give(frame, next.buffer, next.size);
	if (!error && copy_to_user(at, &next, sizeof(next)))
		error = -EFAULT;
	if (error)
		split_frame_end(frame, 0, true);
	else if (frame->state == SPLIT_WAITING)
		frame->state = SPLIT_RUNNING;
	mutex_unlock(&frame->lock);
	split_frame_put(frame);
	return error;
}

static long run_call(struct split_frame *frame, struct split_call *call)
{
	bool registers = split_is_register_call(call->function);
	long error = registers ? (frame->state == SPLIT_RUNNING && !frame->cancelled ? 0 :
				  -ECANCELED) : take(frame, call->buffer);

	if (!error)
		error = split_call(frame, call);
	if (!error && !registers) {
		error = split_pack(frame);
		if (!error)
			error = give(frame, call->buffer, call->size);
	}
	return error;
}

static long call(struct split_host *host, struct file *file, void __user *at)
{
	struct split_call call;
	struct split_frame *frame;
	long error;

	if (copy_from_user(&call, at, sizeof(call)))
		return -EFAULT;
	split_cross(false);
	frame = split_frame_get(host, file, call.frame);
	if (!frame)
		return -ECANCELED;
	mutex_lock(&frame->lock);
	error = run_call(frame, &call);
	mutex_unlock(&frame->lock);
	split_frame_put(frame);
	if (!error && copy_to_user(at, &call, sizeof(call)))
		error = -EFAULT;
	return error;
}

static long control(struct file *file, unsigned int command, unsigned long argument)
{
	struct split_host *host = smp_load_acquire(&file->private_data);
	void __user *at = (void __user *)argument;

	if (command == SPLIT_IOC_ATTACH)
		return attach(file, at);
	if (command != SPLIT_IOC_NEXT && command != SPLIT_IOC_CALL)
		return -ENOTTY;
	if (!host)
		return -ENOTCONN;
	return command == SPLIT_IOC_NEXT ? next_upcall(host, file, at) : call(host, file, at);
}

static int open(struct inode *inode, struct file *file)
{
	/* misc_open leaves the device here; a file begins without a host. */
	file->private_data = NULL;
	return 0;
}

static int release(struct inode *inode, struct file *file)
{
	struct split_host *host = file->private_data;

	if (host) {
		split_detach(host, file);
		split_host_put(host);
	}
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = open,
	.release = release,
	.unlocked_ioctl = control,
	.mmap = split_map_window,
};

static struct miscdevice device = { .minor = MISC_DYNAMIC_MINOR, .name = SPLIT_DEVICE,
				    .fops = &operations, .mode = 0600 };

module_misc_device(device);
MODULE_DESCRIPTION("Run time of split drivers: upcalls into their user halves");
MODULE_LICENSE("GPL");
