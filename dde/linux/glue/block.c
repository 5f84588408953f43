// SPDX-License-Identifier: GPL-2.0-only
/*
 * From the kernel's disk to one that other processes use, and back: bios, above the driver and
 * below any page cache.
 *
 * A thread of the kernel has all of it: clients' requests come in the event loop, which wakes it,
 * and it may sleep where the driver has no room.
 */
#include <linux/bio.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/pci.h>

#include "ddekit/disk.h"
#include "dde.h"
#include "dde_block.h"
#include "dde_disk.h"
#include "dde_net.h"
#include "dde_options.h"

/* Most bytes of one request: more come as several. */
#define TRANSFER_MAX (128u << 10)
/* Requests at once: with the one that is set aside for the server, memory for 16 MiB. */
#define DEPTH_MAX 127u
/*
 * How long something is waited for without sleeping, as ring3's own servers do, and how often that
 * is left out where it has not paid.
 */
#define POLL_NS 50000u
#define SKIP_MAX 15u
/* How long disks are waited for, seconds: a drive may have to spin up. */
#define PATIENCE 45

/* A request that the driver has, by the place in which its tag counts. */
struct slot {
	struct bio bio;
	struct bio_vec piece;
	u64 tag;
};

static struct block_device *disk_of_ours;
static struct ddekit_disk *disk;
static struct pci_dev *controller;
static struct work_struct lost_work;
static struct task_struct *server;
static struct slot *slots, **spare;
static unsigned int spare_count;
static bool stopping, gone;
/* Something has come since the server last looked. */
static bool called;

static void call(void)
{
	called = true;
	if (server)
		wake_up_process(server);
}

void dde_block_came(struct block_device *bdev)
{
	if (disk_of_ours) {
		pr_warn("dde: %pg is not served: the process serves one disk, and has %pg\n", bdev,
			disk_of_ours);
		return;
	}
	disk_of_ours = bdev;
}

void dde_block_goes(struct block_device *bdev)
{
	if (bdev == disk_of_ours) {
		gone = true;
		call();
	}
}

void __weak dde_block_identify(struct gendisk *gendisk, struct dde_identity *identity)
{
	strscpy(identity->model, gendisk->disk_name, sizeof(identity->model));
}

/* The class's errors are more than errnos that the block layer gives for them. */
static int error_of(struct bio *bio)
{
	switch (bio->bi_status) {
	case BLK_STS_OK:
		return 0;
	case BLK_STS_MEDIUM:
		return ENODATA;
	default:
		return -blk_status_to_errno(bio->bi_status);
	}
}

static void ended(struct bio *bio)
{
	struct slot *slot = container_of(bio, struct slot, bio);

	ddekit_disk_end(disk, slot->tag, error_of(bio));
	spare[spare_count++] = slot;
	call();
}

/* Nothing waits for the driver but the server, which it wakes. */
void dde_glue_idle(void)
{
}

static blk_opf_t operation_of(const struct ddekit_disk_request *request)
{
	switch (request->operation) {
	case DDEKIT_DISK_READ:
		return REQ_OP_READ;
	case DDEKIT_DISK_WRITE:
		return REQ_OP_WRITE | REQ_SYNC | REQ_IDLE | (request->fua ? REQ_FUA : 0);
	case DDEKIT_DISK_FLUSH:
		return REQ_OP_WRITE | REQ_PREFLUSH;
	case DDEKIT_DISK_WRITE_ZEROES:
		return REQ_OP_WRITE_ZEROES;
	default:
		return REQ_OP_DISCARD;
	}
}

/* The bytes lie in pages of the kernel's, one behind the other: one piece, however long. */
static void begin(const struct ddekit_disk_request *request)
{
	unsigned int shift = ilog2(bdev_logical_block_size(disk_of_ours));
	struct slot *slot = spare[--spare_count];
	struct bio *bio = &slot->bio;

	slot->tag = request->tag;
	bio_init(bio, disk_of_ours, &slot->piece, 1, operation_of(request));
	bio->bi_end_io = ended;
	bio->bi_iter.bi_sector = request->lba << (shift - SECTOR_SHIFT);
	if (request->data)
		__bio_add_page(bio, virt_to_page(request->data), request->blocks << shift,
			       offset_in_page(request->data));
	else
		bio->bi_iter.bi_size = request->blocks << shift;
	submit_bio(bio);
}

/*
 * Whether polling pays: when it has found nothing, it is left out some times, twice as often each
 * time up to a limit.
 */
static struct {
	unsigned int skip, left;
} budget;

static bool may_poll(void)
{
	if (budget.left == 0)
		return true;
	budget.left--;
	return false;
}

static void has_polled(bool found)
{
	budget.skip = found ? 0 : min(2 * budget.skip + 1, SKIP_MAX);
	budget.left = budget.skip;
}

/*
 * Looks for a while whether something comes, from the device or a client: true if it has. Sleeping
 * and being woken would take longer than most waits.
 */
static bool poll(void)
{
	u64 end = ddekit_now() + POLL_NS;

	/* Each look would be one of a recording's. */
	if (dde_options.journaled || !may_poll())
		return false;
	do
		dde_poll(0);
	while (!called && ddekit_now() < end);
	has_polled(called);
	return called;
}

/*
 * Hands the driver what clients want, and clients what the driver has ended; what has ended the
 * disk.
 */
static int serve(void)
{
	struct ddekit_disk_request request;
	struct blk_plug plug;

	for (;;) {
		int more;

		called = false;
		if (stopping || gone)
			ddekit_disk_stop(disk);
		more = ddekit_disk_turn(disk);
		if (more < 0)
			return more;
		blk_start_plug(&plug);
		while (spare_count > 0 && ddekit_disk_take(disk, &request))
			begin(&request);
		blk_finish_plug(&plug);
		/* What else the kernel has to do is done meanwhile. */
		cond_resched();
		if (more) {
			/* Clients are fast, and the driver is not to wait for them. */
			dde_poll(0);
			continue;
		}
		if (called || poll())
			continue;
		set_current_state(TASK_UNINTERRUPTIBLE);
		if (!called)
			schedule();
		__set_current_state(TASK_RUNNING);
	}
}

/* As many as a bio counts in bytes. */
static unsigned int blocks_of(unsigned int sectors)
{
	unsigned int size = bdev_logical_block_size(disk_of_ours);

	return min_t(u64, (u64)sectors << SECTOR_SHIFT, round_down(UINT_MAX, size)) / size;
}

/*
 * Memory for the data of requests, beside what they are kept in. Who takes all of the disk may keep
 * more requests than the driver takes at once.
 */
static bool make_room(const struct ddekit_disk_info *info, bool lent, void **memory, size_t *len)
{
	*len = PAGE_SIZE << get_order(((lent ? DEPTH_MAX : info->depth) + 1) * info->max_transfer);
	*memory = alloc_pages_exact(*len, GFP_KERNEL | __GFP_COMP | __GFP_NOWARN);
	slots = kcalloc(info->depth, sizeof(*slots), GFP_KERNEL);
	spare = kcalloc(info->depth, sizeof(*spare), GFP_KERNEL);
	if (!*memory || !slots || !spare)
		return false;
	for (unsigned int i = 0; i < info->depth; i++)
		spare[spare_count++] = &slots[i];
	return true;
}

static void describe(const struct dde_identity *identity, struct ddekit_disk_info *info)
{
	struct request_queue *queue = bdev_get_queue(disk_of_ours);
	unsigned int size = bdev_logical_block_size(disk_of_ours);

	*info = (struct ddekit_disk_info){
		.model = identity->model,
		.serial = identity->serial,
		.firmware = identity->firmware,
		.block_size = size,
		.blocks = bdev_nr_bytes(disk_of_ours) / size,
		.max_transfer = round_down(min(queue_max_bytes(queue), TRANSFER_MAX), size),
		.optimal_io = bdev_physical_block_size(disk_of_ours),
		.max_write_zeroes_blocks = blocks_of(bdev_write_zeroes_sectors(disk_of_ours)),
		.max_discard_blocks = blocks_of(bdev_max_discard_sectors(disk_of_ours)),
		.discard_granularity = max(bdev_discard_granularity(disk_of_ours), size),
		.depth = clamp_t(unsigned int, queue->nr_requests, 1, DEPTH_MAX),
		.volatile_cache = bdev_write_cache(disk_of_ours),
		/* Where the disk cannot, the block layer flushes. */
		.fua = true,
		.read_only = bdev_read_only(disk_of_ours),
		.rotates = !bdev_nonrot(disk_of_ours),
	};
}

static void wait_for_disk(void)
{
	unsigned long end = jiffies + PATIENCE * HZ;
	struct pci_dev *pci = NULL;

	wait_for_device_probe();
	for_each_pci_dev(pci)
		if (!pci->dev.driver)
			dde_net_failed(dde_pci_misfit());
	while (!(disk_of_ours && test_bit(GD_ADDED, &disk_of_ours->bd_disk->state) &&
		 bdev_nr_sectors(disk_of_ours) > 0)) {
		if (stopping)
			dde_net_closed();
		if (time_after(jiffies, end))
			dde_net_failed("no disk on the bus within " __stringify(PATIENCE) " s");
		schedule_timeout_uninterruptible(1);
	}
}

static struct pci_dev *device_of(struct gendisk *gendisk)
{
	struct device *dev = disk_to_dev(gendisk);

	while (dev && !dev_is_pci(dev))
		dev = dev->parent;
	return dev ? to_pci_dev(dev) : NULL;
}

/* A driver without its device ends its requests at once, and not when each has taken too long. */
static void lose(struct work_struct *work)
{
	controller->error_state = pci_channel_io_perm_failure;
	device_release_driver(&controller->dev);
}

/* In the thread that has called the drivers' initialisation. */
void dde_run(void)
{
	struct dde_identity identity = { 0 };
	struct ddekit_disk_info info;
	const char *access;
	size_t len;
	void *memory;
	int result;

	wait_for_disk();
	INIT_WORK(&lost_work, lose);
	controller = device_of(disk_of_ours->bd_disk);
	dde_block_identify(disk_of_ours->bd_disk, &identity);
	describe(&identity, &info);
	access = dde_block_access();
	if (!make_room(&info, !access, &memory, &len))
		dde_net_failed("no memory for requests: give the process a larger --arena");
	server = current;
	result = ddekit_disk_serve(dde_device, &info, memory, len, call, access, &disk);
	if (result < 0)
		dde_net_failed(ddekit_error());
	dde_block_served(controller ? dev_driver_string(&controller->dev) : "", info.model,
			 info.blocks, info.block_size);
	result = serve();
	if (gone && !stopping)
		dde_net_failed("the disk is gone: it was pulled out, or the driver has given it "
			       "up");
	if (result != -ESHUTDOWN)
		dde_net_failed(ddekit_error());
	server = NULL;
	ddekit_disk_close(disk);
	/* So that it leaves the device as it was found. */
	if (controller)
		device_release_driver(&controller->dev);
	dde_net_closed();
}

void dde_net_stop(void)
{
	stopping = true;
	if (controller && !pci_device_is_present(controller))
		schedule_work(&lost_work);
	call();
}
