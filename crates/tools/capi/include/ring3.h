/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ring3: a device that is driven by a program.
 *
 * A function that returns int returns 0, or what its comment says, or a negative errno;
 * ring3_error() says more about it. Handles may be used by one thread at a time, those of different
 * handles by different threads. NULL as a handle that is closed is ignored.
 *
 * What a device wrote, in a register or in memory, is input.
 */

#ifndef RING3_H
#define RING3_H

/*
 * Made by cbindgen from crates/tools/capi; tests/header.rs says when it is out of date, and how to
 * renew it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 Blocks to memory.
 */
#define RING3_READ 0

/*
 Memory to blocks.
 */
#define RING3_WRITE 1

/*
 All writes that have ended are to be durable. No blocks.
 */
#define RING3_FLUSH 2

/*
 The blocks are to read as zeroes.
 */
#define RING3_WRITE_ZEROES 3

/*
 The blocks' bytes are not needed any more.
 */
#define RING3_DISCARD 4

/*
 How a function signals: the pin, which comes masked and is masked each time it has fired.
 */
#define RING3_INTX 0

/*
 How a function signals: messages to one address.
 */
#define RING3_MSI 1

/*
 How a function signals: messages, by a table of vectors.
 */
#define RING3_MSIX 2

/*
 Of a device: what passes is written down.
 */
#define RING3_RECORDED 1

/*
 Of a device: it is one of a recording.
 */
#define RING3_REPLAYED 2

/*
 Of a sleep: its time is over.
 */
#define RING3_ELAPSED 0

/*
 Of a sleep: an interrupt came.
 */
#define RING3_INTERRUPT 1

/*
 Of a sleep: the descriptor is readable.
 */
#define RING3_WOKEN 2

/*
 The range of one base address register, memory or ports.
 */
struct ring3_bar;

/*
 Bytes that the device reaches, of its arena or registered: mapped when the device was opened, or
 when they were registered, so that no request maps anything.
 */
struct ring3_buffer;

/*
 A network card: one that this program drives (ring3_card_new), or one that ring3 drives for it
 (ring3_card_open).
 */
struct ring3_card;

/*
 The way through an opened card in both directions, for one thread at a time.

 Its buffers have numbers. A buffer is the card's, the program's, or free.
 */
struct ring3_card_queue;

/*
 One PCI function, claimed exclusively. What was opened of it keeps it.
 */
struct ring3_device;

/*
 A disk: one that this program drives (ring3_disk_new), or one that ring3 drives for it
 (ring3_disk_open).
 */
struct ring3_disk;

/*
 A way to a disk that was opened, for one thread at a time; queues share nothing.
 */
struct ring3_disk_queue;

/*
 One interrupt vector.
 */
struct ring3_irq;

/*
 Memory in which O_DIRECT requests to the block devices of an export need no copy
 (`ring3 run --share SOCKET`).
 */
struct ring3_share;

/*
 What a program says of its card, or ring3 of one that was opened (ring3_card_describe), whose
 text is valid until it is closed.
 */
struct ring3_card_info {
  /*
   Its maker's name for it; text.
   */
  const char *model;
  /*
   Its address.
   */
  uint8_t mac[6];
  /*
   The least and the largest packet without its Ethernet header, bytes.
   */
  uint32_t mtu_min;
  /*
   See mtu_min.
   */
  uint32_t mtu_max;
  /*
   It makes checksums of TCP and UDP for what is sent, and says which it has found right of
   what it receives.
   */
  bool checksums;
  /*
   Most bytes of a packet of TCP that it cuts into frames, headers included; 0 if it cuts none.
   Only with checksums.
   */
  uint32_t segmented_max;
};

/*
 A frame that is to be sent.
 */
struct ring3_card_frame {
  /*
   Its bytes.
   */
  uint32_t len;
  /*
   The card puts in the checksum that begins at this byte; 0 if there is none to make.
   */
  uint16_t checksum_start;
  /*
   Where that belongs, from its first byte on. The sum of what is not in the frame stands
   there.
   */
  uint16_t checksum_offset;
  /*
   The card cuts it into frames with so many bytes of payload each; 0 if not.
   */
  uint16_t segment;
  /*
   Bytes of the headers of each of these frames.
   */
  uint16_t headers;
  /*
   They are of IPv6.
   */
  bool ipv6;
};

/*
 What a card shall let through: what is for its own address and for everybody, and this.
 */
struct ring3_card_filter {
  /*
   Everything, whoever it is for.
   */
  bool promiscuous;
  /*
   Every group; `groups` is empty then.
   */
  bool all_groups;
  /*
   Further addresses, `unicast_count` of them. Valid until the next call of ring3_card_filter.
   */
  const uint8_t (*unicast)[6];
  /*
   Groups, `group_count` of them. Valid as long.
   */
  const uint8_t (*groups)[6];
  /*
   How many.
   */
  size_t unicast_count;
  /*
   How many.
   */
  size_t group_count;
};

/*
 What a program asks for when it opens a card. Zeroes are the default.
 */
struct ring3_card_options {
  /*
   Bytes of memory, beside what the driver needs, for the buffers of its queue; 0 for 8 MiB.
   */
  uint64_t arena;
  /*
   The card raises no interrupts: its queue is polled.
   */
  bool polled;
  /*
   The user has said that no IOMMU need stand between the device and memory.
   */
  bool unprotected;
};

/*
 The state of the wire.
 */
struct ring3_card_link {
  /*
   Megabits per second; 0 if the card does not know.
   */
  uint32_t mbits;
  /*
   There is somebody at the other end.
   */
  bool up;
  /*
   Both ends may send at once; false if the card does not know.
   */
  bool full_duplex;
};

/*
 A packet, or a piece of one, in a buffer of the queue's that the program has.
 */
struct ring3_card_packet {
  /*
   Its first byte, from the Ethernet header on.
   */
  void *data;
  /*
   Its bytes, without the check sequence at the end of a frame.
   */
  uint32_t len;
  /*
   Most bytes from `data` on.
   */
  uint32_t room;
  /*
   The buffer's number. It is the library's: do not change it.
   */
  uint32_t buffer;
  /*
   Received: the card has found the checksum of TCP or UDP right. Nothing of one to be sent.
   */
  bool checked;
  /*
   The next packet of the batch, or the first of the next batch, is another piece of the same.
   */
  bool more;
};

/*
 What a driver asks for when it opens a device. Zeroes are the usual.
 */
struct ring3_options {
  /*
   Bytes of memory that the device can reach, of which buffers are allocated; 0 for 64 MiB. The
   URI's `arena=` counts more.
   */
  uint64_t arena;
  /*
   All of it lies below this device address: 1 << n for a device that drives n address lines; 0
   for no limit.
   */
  uint64_t below;
  /*
   The user has said that no IOMMU need stand between the device and memory.
   */
  bool unprotected;
};

/*
 What a base address register says about itself.
 */
struct ring3_bar_info {
  /*
   Bytes.
   */
  uint64_t len;
  /*
   Ports, not memory.
   */
  bool ports;
};

/*
 What a program says of its disk, or ring3 of one that was opened (ring3_disk_describe), whose
 texts are valid until it is closed.
 */
struct ring3_disk_info {
  /*
   Its maker's name for it; text.
   */
  const char *model;
  /*
   Its serial number; text.
   */
  const char *serial;
  /*
   Its firmware's revision; text.
   */
  const char *firmware;
  /*
   Blocks.
   */
  uint64_t blocks;
  /*
   Bytes of each: a power of two, 512 at least.
   */
  uint32_t block_size;
  /*
   Most bytes of one request, a block at least.
   */
  uint32_t max_transfer;
  /*
   Bytes of a write that costs no read within the disk.
   */
  uint32_t optimal_io;
  /*
   Most blocks of one request that writes zeroes; 0 if it cannot.
   */
  uint32_t max_write_zeroes_blocks;
  /*
   Most blocks of one discard; 0 if it cannot.
   */
  uint32_t max_discard_blocks;
  /*
   Bytes of the smallest piece that a discard frees.
   */
  uint32_t discard_granularity;
  /*
   Most requests at once, 1 at least. Of an opened disk, 0: a queue says how many it holds.
   */
  uint16_t depth;
  /*
   Writes may sit in a cache that loses them with the power: flushes mean something.
   */
  bool volatile_cache;
  /*
   A single write can be durable at its end.
   */
  bool fua;
  /*
   It refuses to be changed.
   */
  bool read_only;
  /*
   Its medium turns.
   */
  bool rotates;
};

/*
 A request: of a client's, checked to be on the disk, not longer than it takes, and of what it
 can do (ring3_disk_take); or of this program's to an opened disk, of any length
 (ring3_disk_queue_submit).
 */
struct ring3_disk_request {
  /*
   For ring3_disk_end. This program's own: what it likes, below 1 << 63.
   */
  uint64_t tag;
  /*
   The first block.
   */
  uint64_t lba;
  /*
   Where its bytes lie, in one piece; NULL if there are none. Of a driven disk, in the memory
   that it was made with; of an opened one, anywhere in a buffer of its own.
   */
  void *data;
  /*
   Blocks.
   */
  uint32_t blocks;
  /*
   What to do: RING3_READ, ...
   */
  uint32_t operation;
  /*
   A write is durable at its end.
   */
  bool fua;
};

/*
 What a program asks for when it opens a disk. Zeroes are the default.
 */
struct ring3_disk_options {
  /*
   Bytes of memory for ring3_disk_alloc, beside what the driver needs; 0 for 16 MiB. The URI's
   `arena=` counts more.
   */
  uint64_t arena;
  /*
   With `choose`, the disk's number: the namespace of an NVMe controller, or the place of an
   ATA drive, from 0.
   */
  uint32_t part;
  /*
   Queues that will be open at the same time; 0 for 1.
   */
  uint16_t queues;
  /*
   The device has several disks, and `part` is meant.
   */
  bool choose;
  /*
   The device raises no interrupts: queues are polled while requests are in flight.
   */
  bool polled;
  /*
   The user has said that no IOMMU need stand between the device and memory.
   */
  bool unprotected;
};

/*
 The end of a request.
 */
struct ring3_disk_completion {
  /*
   The request's.
   */
  uint64_t tag;
  /*
   0 if it ended well, or the errno of what has failed: EIO, EINVAL (beyond the end of the
   disk), ENOSPC, EROFS, EOPNOTSUPP, EILSEQ, ETIMEDOUT or ENODEV.
   */
  int error;
  /*
   Of a read or write that has failed: nobody could stop the device, which may still use the
   request's bytes. Their buffer is for ring3_dma_abandon and not for ring3_dma_release.
   */
  bool lost;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens BAR `index` (0 to 5).

 # Safety
 `bar` points to a place for the handle.
 */
int ring3_bar_open(const struct ring3_device *device, uint8_t index, struct ring3_bar **bar);

/*
 Ends the handle; where it was mapped is not mapped any more.

 # Safety
 `bar` was opened and not closed, or is NULL.
 */
void ring3_bar_close(struct ring3_bar *bar);

/*
 Bytes.
 */
uint64_t ring3_bar_len(const struct ring3_bar *bar);

/*
 Reads `width` (1, 2, 4 or 8) bytes at byte `offset`; all ones outside of the range and of a
 device that is gone.
 */
uint64_t ring3_bar_read(const struct ring3_bar *bar, uint64_t offset, uint32_t width);

/*
 Writes the low `width` (1, 2, 4 or 8) bytes of `value` at byte `offset`; nothing outside of the
 range. A write may be posted: a read from the same function pushes it out.
 */
void ring3_bar_write(const struct ring3_bar *bar, uint64_t offset, uint32_t width, uint64_t value);

/*
 Where its first bytes lie in this process, as many as `len` says then; NULL where the backend
 maps nothing, so that only ring3_bar_read and ring3_bar_write reach it. Valid until it is
 closed. Accesses are volatile and aligned.

 # Safety
 `len` points to a number, or is NULL.
 */
void *ring3_bar_map(const struct ring3_bar *bar, uint64_t *len);

/*
 Makes a card that nobody uses yet, whose link is down.

 # Safety
 `info` and its model are valid, and `card` points to a place for the handle.
 */
int ring3_card_new(const struct ring3_card_info *info, struct ring3_card **card);

/*
 Serves the card to other programs at the socket `access`: a path, and behind it terms,
 `PATH,mac=52:54:00:12:34:56,memory=32M`, as `ring3 serve net` takes them. From now on the
 program calls ring3_card_turn: when ring3_card_fd is readable, when it has received or sent
 frames, and after it has said anything of the card.

 # Safety
 `access` is a text.
 */
int ring3_card_serve(struct ring3_card *card, const char *access);

/*
 Gives the card to ring3d, which has leased `device` to this program, the card's, and makes an
 interface of it. When ring3d wants the driver to end, ring3_card_take says -ESHUTDOWN: the
 program closes the card, then the device, and ends.
 */
int ring3_card_lend(const struct ring3_card *card, const struct ring3_device *device);

/*
 Ends the handle. A card that this program drives is taken from whoever uses it; a device that
 was opened is given up when its queue is closed, too.

 # Safety
 `card` was made or opened and not closed, or is NULL.
 */
void ring3_card_close(struct ring3_card *card);

/*
 Says how the link is; a speed of 0 Mbit/s is one that is not known.
 */
void ring3_card_set_link(const struct ring3_card *card, bool up, uint32_t mbits, bool full_duplex);

/*
 Says how many frames the device has lost since it was opened for want of room: they are counted
 with those for which the card's users had none.
 */
void ring3_card_set_missed(const struct ring3_card *card, uint64_t frames);

/*
 A frame has come from the wire, without its check sequence: copies it to whoever uses the card.
 `checked` says that the card has found its checksum right. 0, or -ENOBUFS if it was lost, for
 want of a buffer or because nobody wants it; that is counted.

 # Safety
 `frame` points to `len` bytes.
 */
int ring3_card_receive(const struct ring3_card *card, const void *frame, size_t len, bool checked);

/*
 What is readable, for poll and epoll, when there are frames to send or another filter to set: of
 a card that is served or lent. A sleep on it may also end with EINTR then. Reading it is
 ring3_card_heard's, or ring3_card_turn's.
 */
int ring3_card_fd(const struct ring3_card *card);

/*
 Of a card that is served: hears its users, gives them what was received, and takes what they
 send. Then look, by ring3_card_take and ring3_card_filter, until there is nothing. 1 if there is
 more to do at once, 0 if the program may sleep until the descriptor is readable or it has
 something for the card's users; or what has ended the server, which ring3_error() says. Of a
 card that is lent it does nothing.
 */
int ring3_card_turn(struct ring3_card *card);

/*
 Of a card that is lent: ends the readability of the descriptor. Then look, by ring3_card_take
 and ring3_card_filter, until there is nothing.
 */
void ring3_card_heard(const struct ring3_card *card);

/*
 What is to be sent next, which stays where it is: 1 and `frame`, 0 if there is nothing, or
 -ESHUTDOWN as ring3_card_take.

 # Safety
 `frame` points to a place for it.
 */
int ring3_card_next(const struct ring3_card *card, struct ring3_card_frame *frame);

/*
 The next frame is not sent, for want of a link for example: it is counted as lost.
 */
void ring3_card_lose(const struct ring3_card *card);

/*
 Copies the next frame to be sent to `room` bytes at `frame`, and counts it as sent. Its bytes, 0
 if there is none, -EMSGSIZE if it is longer than `room`: it is lost then; or -ESHUTDOWN if the
 program is to end.

 # Safety
 `frame` points to `room` bytes.
 */
int ring3_card_take(const struct ring3_card *card, void *frame, size_t room);

/*
 What the card shall let through: 1 and `filter` if that has changed since the last call, 0 if
 not. Who uses the card waits until ring3_card_filtered says that it is set.

 # Safety
 `filter` points to a place for it.
 */
int ring3_card_filter(struct ring3_card *card, struct ring3_card_filter *filter);

/*
 The filter that was taken last is set.
 */
void ring3_card_filtered(const struct ring3_card *card);

/*
 Opens the card that `uri` names, starts its driver, and claims the device exclusively:
 `vfio:0000:01:00.0`, `qtest:e1000e`, `qtest:virtio-net-pci`, `vfio-user:PATH`, `sim:e1000`; or
 `remote:PATH`, which another process drives and shares. `options` may be NULL.

 # Safety
 `uri` is a text, and `card` points to a place for the handle.
 */
int ring3_card_open(const char *uri, const struct ring3_card_options *options, struct ring3_card **card);

/*
 The name of an opened card, for messages. NULL of one that this program drives. Valid until it
 is closed.
 */
const char *ring3_card_name(const struct ring3_card *card);

/*
 What an opened card is and can.

 # Safety
 `info` points to a place for it.
 */
int ring3_card_describe(const struct ring3_card *card, struct ring3_card_info *info);

/*
 How the wire of an opened card is now.

 # Safety
 `link` points to a place for it.
 */
int ring3_card_get_link(const struct ring3_card *card, struct ring3_card_link *link);

/*
 Has an opened card let everything through, whoever it is for, or again only what is for its own
 address and for everybody, as it does when it was opened.
 */
int ring3_card_set_promiscuous(const struct ring3_card *card, bool promiscuous);

/*
 Opens the queue of an opened card for packets of up to `mtu` bytes without their Ethernet header
 (0 for 1500), with up to `depth` buffers for each direction (0 for 256). The card receives from
 now on. -EBUSY while it is open already.

 # Safety
 `queue` points to a place for the handle.
 */
int ring3_card_queue_open(const struct ring3_card *card,
                          uint32_t mtu,
                          uint16_t depth,
                          struct ring3_card_queue **queue);

/*
 Ends the queue and gives its buffers back, those that the program has, too.

 # Safety
 `queue` was opened and not closed, or is NULL.
 */
void ring3_card_queue_close(struct ring3_card_queue *queue);

/*
 Takes up to `room` packets that were received, and returns how many. Each is the program's until
 it is released or sent; the card has as many buffers less meanwhile. -ENODEV and -EIO say that
 the driver has given the card up; after other errors the queue goes on.

 # Safety
 `packets` points to `room` places.
 */
int ring3_card_queue_receive(struct ring3_card_queue *queue, struct ring3_card_packet *packets, size_t room);

/*
 Takes up to `count` free buffers for packets that the program writes, and returns of how many;
 fewer if so many are on their way. `room` of each says how long its packet may be.

 # Safety
 `packets` points to `count` places.
 */
int ring3_card_queue_alloc(struct ring3_card_queue *queue, struct ring3_card_packet *packets, size_t count);

/*
 Hands the first of `count` packets to the card, as many as there is room for, and returns how
 many: their buffers are the card's, and free when they were sent. Those that were received can
 be sent as they are. A packet that makes no sense ends the call before it; if it is the first,
 it is -EINVAL, or -EMSGSIZE if it is longer than the card takes. One write to a register.

 # Safety
 `packets` points to `count` packets.
 */
int ring3_card_queue_send(struct ring3_card_queue *queue,
                          const struct ring3_card_packet *packets,
                          size_t count);

/*
 Gives buffers that the program has back to the queue, unsent.

 # Safety
 `packets` points to `count` packets.
 */
void ring3_card_queue_release(struct ring3_card_queue *queue,
                              const struct ring3_card_packet *packets,
                              size_t count);

/*
 Waits until there is something to receive, `timeout_ms` at most, by polling and then by
 interrupt: 1, or 0 at the end of that time.
 */
int ring3_card_queue_wait(struct ring3_card_queue *queue, uint32_t timeout_ms);

/*
 A descriptor for poll and epoll, readable when there may be something to receive, if
 ring3_card_queue_arm was called before the sleep; -ENOENT of a queue that is polled. It is the
 queue's: do not close or read it.
 */
int ring3_card_queue_fd(const struct ring3_card_queue *queue);

/*
 Prepares a sleep in the program's own loop, after it has received: 1 if it may sleep on the
 descriptor, `timeout_ms` at most (-1: without an end), and then receives and calls this again; 0
 if it must not, because there is something to receive, or because the queue has no interrupt.

 # Safety
 `timeout_ms` points to a number.
 */
int ring3_card_queue_arm(struct ring3_card_queue *queue, int *timeout_ms);

/*
 Whether buffers that come back from being sent wake the program, too: for one that waits until
 ring3_card_queue_alloc has some.
 */
void ring3_card_queue_wake_on_sent(struct ring3_card_queue *queue, bool wake);

/*
 Opens the device that `uri` names: `vfio:0000:01:00.0`, `uio:0000:01:00.0`, `qtest:edu`,
 `vfio-user:PATH`, `sim:edu`, `replay:FILE`. `options` may be NULL.

 `lease:3` is the device for which ring3d has started this program: the call waits until there is
 one, closes all descriptors but 0 to 3 and confines the process, which has one thread. The
 device's memory is what ring3d has given it.

 # Safety
 `uri` is a text, and `device` points to a place for the handle.
 */
int ring3_open(const char *uri, const struct ring3_options *options, struct ring3_device **device);

/*
 Gives the device up when nothing that was opened of it is open any more: bus mastering off,
 reset, and the claim.

 # Safety
 `device` was opened and not closed, or is NULL.
 */
void ring3_close(struct ring3_device *device);

/*
 The name by which it was opened, for messages. Valid while the device is open.
 */
const char *ring3_name(const struct ring3_device *device);

/*
 Reads `width` (1, 2 or 4) bytes of configuration space; all ones where there is nothing.
 */
uint32_t ring3_config_read(const struct ring3_device *device, uint64_t offset, uint32_t width);

/*
 Writes `width` (1, 2 or 4) bytes of configuration space. Base address registers, MSI, MSI-X and
 the bits of COMMAND that decode and master the bus are not the caller's: -EINVAL.
 */
int ring3_config_write(const struct ring3_device *device, uint64_t offset, uint32_t width, uint32_t value);

/*
 What BAR `index` (0 to 5) is, without opening it; -ENOENT if it is absent.

 # Safety
 `info` points to a place for it.
 */
int ring3_bar_describe(const struct ring3_device *device, uint8_t index, struct ring3_bar_info *info);

/*
 Allows or forbids the function to start transfers: off, no DMA and no MSI leaves it.
 */
int ring3_set_bus_master(const struct ring3_device *device, bool on);

/*
 Resets the function: afterwards nothing that was started before writes to memory, and what was
 enabled of interrupts and bus mastering is enabled again. -EOPNOTSUPP if it cannot be reset; its
 transfers are stopped then.
 */
int ring3_reset(const struct ring3_device *device);

/*
 A descriptor that is readable when the platform wants the device back; -ENOENT where nobody can
 know. It is the device's: do not close it.
 */
int ring3_removal_fd(const struct ring3_device *device);

/*
 Makes a disk that nobody uses yet. The `len` bytes at `offset` of `memory`, at multiples of
 4096, are where its requests' bytes lie: depth + 1 times max_transfer bytes at least. They are
 the disk's until it is closed; `memory` stays the caller's, and outlives the disk.

 # Safety
 `info` and its texts are valid, and `disk` points to a place for the handle.
 */
int ring3_disk_new(const struct ring3_disk_info *info,
                   const struct ring3_buffer *memory,
                   size_t offset,
                   size_t len,
                   struct ring3_disk **disk);

/*
 Serves the disk to other programs at the socket `access`: a path, and behind it terms,
 `PATH,clients=1,access=ro`, as `ring3 serve disk` takes them. From now on the program calls
 ring3_disk_turn.

 # Safety
 `access` is a text.
 */
int ring3_disk_serve(struct ring3_disk *disk, const char *access);

/*
 Gives the disk to ring3d, which has leased `device` to this program, the disk's, and makes a
 block device of it. From now on the program calls ring3_disk_turn; when ring3d wants the driver
 to end, that says -ESHUTDOWN: the program closes the disk, then the device, and ends. A program
 that has lost the disk calls ring3_disk_stop.
 */
int ring3_disk_lend(const struct ring3_disk *disk, const struct ring3_device *device);

/*
 Ends the handle. A disk that this program drives is taken from whoever uses it; requests that
 have not ended are lost to their clients. A device that was opened is given up when its queues
 and buffers are closed, too.

 # Safety
 `disk` was made or opened and not closed, or is NULL.
 */
void ring3_disk_close(struct ring3_disk *disk);

/*
 What is readable, for poll and epoll, when ring3_disk_turn has something to do: a sleep on it
 may also end with EINTR then. -ENOTCONN if the disk is not served.
 */
int ring3_disk_fd(const struct ring3_disk *disk);

/*
 Hears the disk's users, and tells them what has ended. Then ring3_disk_take until there is
 nothing. 1 if there is more to do at once, 0 if the program may sleep until the descriptor is
 readable or it has ended a request; -ESHUTDOWN after ring3_disk_stop, once the last has ended;
 or what has ended the server, which ring3_error() says.
 */
int ring3_disk_turn(struct ring3_disk *disk);

/*
 The next request: 1, or 0 if there is none.

 # Safety
 `request` points to a place for it.
 */
int ring3_disk_take(const struct ring3_disk *disk, struct ring3_disk_request *request);

/*
 The request with `tag` has ended: well if `error` is 0, or with that errno. Its bytes are the
 disk's again. Its user hears of it at the next ring3_disk_turn.
 */
void ring3_disk_end(const struct ring3_disk *disk, uint64_t tag, int error);

/*
 Takes no further requests; those that were taken end first: see ring3_disk_turn.
 */
void ring3_disk_stop(struct ring3_disk *disk);

/*
 Opens the disk that `uri` names, starts its driver, and claims the device exclusively:
 `vfio:0000:01:00.0`, `uio:0000:01:00.0`, `qtest:nvme`, `vfio-user:PATH`, `sim:nvme`; or
 `remote:PATH`, which another process drives and shares. `options` may be NULL.

 # Safety
 `uri` is a text, and `disk` points to a place for the handle.
 */
int ring3_disk_open(const char *uri, const struct ring3_disk_options *options, struct ring3_disk **disk);

/*
 The name of an opened disk, for messages: `sim:nvme namespace 1`. NULL of one that this program
 drives. Valid until it is closed.
 */
const char *ring3_disk_name(const struct ring3_disk *disk);

/*
 What an opened disk is and can.

 # Safety
 `info` points to a place for it.
 */
int ring3_disk_describe(const struct ring3_disk *disk, struct ring3_disk_info *info);

/*
 Most queues of an opened disk that can be open at the same time: one for each thread is best. 0
 of a disk that this program drives.
 */
uint16_t ring3_disk_max_queues(const struct ring3_disk *disk);

/*
 Takes `len` bytes of the memory that an opened disk's device reaches, zeroed, from a page on,
 for requests of all its queues. -ENOMEM says how large the arena is.

 # Safety
 `buffer` points to a place for the handle.
 */
int ring3_disk_alloc(const struct ring3_disk *disk, size_t len, struct ring3_buffer **buffer);

/*
 Maps the `len` bytes from `offset` on, whole pages, of a file in memory (memfd, hugetlbfs) for
 an opened disk's device, so that requests of all its queues reach them: memory that the program
 shares with others, or has mapped itself. `buffer` has its own mapping of the same bytes. They
 stay registered until the disk is closed. -EOPNOTSUPP of a backend that maps memory only when
 the device is opened.

 # Safety
 `buffer` points to a place for the handle.
 */
int ring3_disk_register(const struct ring3_disk *disk,
                        int fd,
                        uint64_t offset,
                        size_t len,
                        struct ring3_buffer **buffer);

/*
 Opens a queue of an opened disk that holds `depth` requests, or as many as the device can.

 # Safety
 `queue` points to a place for the handle.
 */
int ring3_disk_queue_open(const struct ring3_disk *disk, uint16_t depth, struct ring3_disk_queue **queue);

/*
 Ends the queue. Requests in flight are stopped first: whether they were done is not known, and
 their bytes are the program's again, unless a warning says that the device could not be stopped.

 # Safety
 `queue` was opened and not closed, or is NULL.
 */
void ring3_disk_queue_close(struct ring3_disk_queue *queue);

/*
 Requests that it holds.
 */
uint16_t ring3_disk_queue_depth(const struct ring3_disk_queue *queue);

/*
 Requests that were submitted and not reaped.
 */
uint16_t ring3_disk_queue_in_flight(const struct ring3_disk_queue *queue);

/*
 Queues the first of `count` requests, as many as there is room for; returns how many. They begin
 with ring3_disk_queue_ring, may end in any order, and their bytes are the device's until they
 are reaped. A request that makes no sense ends the call before it; if it is the first, what is
 wrong is the result: -EFAULT of bytes that are not in a buffer of the disk, -EINVAL, -EROFS,
 -EOPNOTSUPP.

 # Safety
 `requests` points to `count` requests, and the buffers that their bytes lie in are not released
 before these have ended.
 */
int ring3_disk_queue_submit(struct ring3_disk_queue *queue,
                            const struct ring3_disk_request *requests,
                            size_t count);

/*
 Hands everything that was submitted since the last call to the device: one write to a register.
 Does not wait.
 */
void ring3_disk_queue_ring(struct ring3_disk_queue *queue);

/*
 Takes the ends of up to `room` requests, and returns of how many; 0 if there are none. -ENODEV
 and -EIO say that the driver has given the device up; after other errors the queue goes on.

 # Safety
 `ends` points to `room` places.
 */
int ring3_disk_queue_reap(struct ring3_disk_queue *queue, struct ring3_disk_completion *ends, size_t room);

/*
 Waits until there is something to reap, `timeout_ms` at most, by polling and then by interrupt:
 1, or 0 at the end of that time. Finds requests that have taken too long.
 */
int ring3_disk_queue_wait(struct ring3_disk_queue *queue, uint32_t timeout_ms);

/*
 Does one request and waits for its end, `timeout_ms` at most: 0, or the errno of its end,
 negative. -EBUSY while others are in flight. After -ETIMEDOUT the queue is of no use but to be
 closed.

 # Safety
 The buffer that its bytes lie in is not released before it has ended.
 */
int ring3_disk_queue_execute(struct ring3_disk_queue *queue,
                             const struct ring3_disk_request *request,
                             uint32_t timeout_ms);

/*
 A descriptor for poll and epoll, readable when there may be something to reap, if
 ring3_disk_queue_arm was called before the sleep; -ENOENT of a queue that is polled. It is the
 queue's: do not close or read it.
 */
int ring3_disk_queue_fd(const struct ring3_disk_queue *queue);

/*
 Prepares a sleep in the program's own loop, after it has reaped: 1 if it may sleep on the
 descriptor, `timeout_ms` at most (-1: without an end), and then reaps and calls this again; 0 if
 it must not, because there is something to reap, or because a queue without an interrupt has
 requests in flight. Finds requests that have taken too long.

 # Safety
 `timeout_ms` points to a number.
 */
int ring3_disk_queue_arm(struct ring3_disk_queue *queue, int *timeout_ms);

/*
 Takes `len` bytes of the arena, in one piece for the device, zeroed, at a multiple of `align` (a
 power of two). -ENOMEM says how large the arena is.

 # Safety
 `buffer` points to a place for the handle.
 */
int ring3_dma_alloc(const struct ring3_device *device,
                    size_t len,
                    size_t align,
                    struct ring3_buffer **buffer);

/*
 The largest `len` that ring3_dma_alloc can give now if the arena is not in pieces.
 */
size_t ring3_dma_free_bytes(const struct ring3_device *device);

/*
 Gives the bytes back. The device must be done with them. Those that were registered stay
 registered.

 # Safety
 `buffer` was allocated and not given back, or is NULL.
 */
void ring3_dma_release(struct ring3_buffer *buffer);

/*
 Ends the handle without giving the bytes back, ever: for a device that nobody could stop, and
 that may still write there.

 # Safety
 `buffer` was allocated and not given back, or is NULL.
 */
void ring3_dma_abandon(struct ring3_buffer *buffer);

/*
 Where the bytes are in this process. The device may write them at any time.
 */
void *ring3_dma_address(const struct ring3_buffer *buffer);

/*
 Where the device finds them.
 */
uint64_t ring3_dma_iova(const struct ring3_buffer *buffer);

/*
 Bytes.
 */
size_t ring3_dma_len(const struct ring3_buffer *buffer);

/*
 What the last function that failed on this thread has to say: what happened, and what to do
 next. Never NULL; valid until the next failure on this thread.
 */
const char *ring3_error(void);

/*
 How many vectors of `how` (RING3_INTX, RING3_MSI, RING3_MSIX) the function has.
 */
uint16_t ring3_irq_count(const struct ring3_device *device, uint32_t how);

/*
 Enables vectors 0 to `count - 1` of `how` and disables what was enabled before; puts their
 handles into `irqs`. A count of 0 only disables.

 # Safety
 `irqs` points to `count` places for handles.
 */
int ring3_irq_open(const struct ring3_device *device, uint32_t how, uint16_t count, struct ring3_irq **irqs);

/*
 Ends the handle.

 # Safety
 `irq` was opened and not closed, or is NULL.
 */
void ring3_irq_close(struct ring3_irq *irq);

/*
 What is readable, for poll and epoll, when it has been raised and not taken. It is the
 interrupt's: do not close or read it.
 */
int ring3_irq_fd(const struct ring3_irq *irq);

/*
 Takes what has come: puts into `count` how often it was raised since it was last taken. Never
 blocks.

 # Safety
 `count` points to a number.
 */
int ring3_irq_take(const struct ring3_irq *irq, uint64_t *count);

/*
 Waits until it is raised, `timeout_ms` at most, and takes it: a `count` of 0 says that it was
 not.

 # Safety
 `count` points to a number.
 */
int ring3_irq_wait(const struct ring3_irq *irq, uint32_t timeout_ms, uint64_t *count);

/*
 Holds it back; one that comes meanwhile comes when it is unmasked.
 */
int ring3_irq_mask(const struct ring3_irq *irq);

/*
 Lets it through: the pin must be unmasked after each time it was served. Look at the device once
 more before sleeping.
 */
int ring3_irq_unmask(const struct ring3_irq *irq);

/*
 Milliseconds for which it is still held back because it came too often; -1 if it is not. A
 program that sleeps on the descriptor calls ring3_irq_rearm when they are over.
 */
int64_t ring3_irq_held_ms(const struct ring3_irq *irq);

/*
 Ends the pause of an interrupt that came too often, if it is over.
 */
int ring3_irq_rearm(const struct ring3_irq *irq);

/*
 Begins, before anything else is done with the device: 0 if it is neither recorded nor replayed,
 RING3_RECORDED or RING3_REPLAYED. With one of these, what the device has written to memory, and
 its interrupts, come with the answer of a register, behind ring3_journal_sync and with
 ring3_journal_wait, and at no other time, and memory is the device's only where
 ring3_journal_share has said so.
 */
int ring3_journal_begin(const struct ring3_device *device);

/*
 The device reaches `len` bytes from its address `iova` on; they are zero.
 */
int ring3_journal_share(const struct ring3_device *device, uint64_t iova, size_t len);

/*
 The device reaches what was shared from `iova` on no more.
 */
int ring3_journal_unshare(const struct ring3_device *device, uint64_t iova);

/*
 A full barrier between the driver's memory and the device's: each has what the other one has
 written. -ENODEV as of ring3_journal_wait.
 */
int ring3_journal_sync(const struct ring3_device *device);

/*
 Sleeps until an interrupt comes, whose number `vector` gets and which can be taken, or `fd` is
 readable, `ns` at most (UINT64_MAX: without an end); RING3_ELAPSED, RING3_INTERRUPT or
 RING3_WOKEN. Of a recording it says the same at once. -ENODEV where the recording ends, or the
 driver has left it.

 # Safety
 `vector` points to a number, and `fd` is open.
 */
int ring3_journal_wait(const struct ring3_device *device, int fd, uint64_t ns, uint16_t *vector);

/*
 Writes down `len` bytes that the world outside has given the driver.

 # Safety
 `bytes` points to as many.
 */
int ring3_journal_note(const struct ring3_device *device, const uint8_t *bytes, size_t len);

/*
 Puts what was written down next into `bytes`: as many as it was then, which is `len`. -EPROTO if
 it was not, -ENODEV as of ring3_journal_wait.

 # Safety
 `bytes` points to room for them.
 */
int ring3_journal_answer(const struct ring3_device *device, uint8_t *bytes, size_t len);

/*
 What a recording or a replay has found when its device was closed: that it is not whole, or
 where the driver has left it; NULL if nothing. Valid until the next call.
 */
const char *ring3_journal_verdict(void);

/*
 Makes `len` zeroed bytes, or some more, of huge pages if the system has that many free, and
 shares them with the export that listens at `socket`. From then on, plain reads and writes, or
 io_uring, with O_DIRECT on its block devices and on files there move no byte twice if they lie
 in that memory in one piece. The process of the export, and its device, can see and change the
 bytes at any time.

 # Safety
 `socket` is a text, and `share` points to a place for the handle.
 */
int ring3_share_alloc(const char *socket, size_t len, struct ring3_share **share);

/*
 Its first byte, on a page.
 */
void *ring3_share_address(const struct ring3_share *share);

/*
 Bytes.
 */
size_t ring3_share_len(const struct ring3_share *share);

/*
 The file, for other processes that map it. It is the handle's: do not close it.
 */
int ring3_share_fd(const struct ring3_share *share);

/*
 Whether the export has ended, or parted, or the memory was revoked. Requests that still succeed
 are copied then.
 */
bool ring3_share_is_lost(const struct ring3_share *share);

/*
 Takes the memory back: when this returns well, no request lies there any more and no device
 reaches it. The bytes stay until the handle is closed.
 */
int ring3_share_revoke(struct ring3_share *share);

/*
 Ends the handle: the bytes are gone, and the export takes them from its device.

 # Safety
 `share` was allocated and not closed, or is NULL, and no request that lies there is in flight.
 */
void ring3_share_close(struct ring3_share *share);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RING3_H */
