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
 Bytes of the device's arena, which it reaches: mapped when the device was opened, so that no
 call maps anything later.
 */
struct ring3_buffer;

/*
 A network card that this program drives.
 */
struct ring3_card;

/*
 One PCI function, claimed exclusively. What was opened of it keeps it.
 */
struct ring3_device;

/*
 A disk that this program drives.
 */
struct ring3_disk;

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
 What a program says of its card.
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
 What a program says of its disk.
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
   Most requests at once, 1 at least.
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
 A request of a client's, checked: on the disk, not longer than it takes, and of what it can do.
 */
struct ring3_disk_request {
  /*
   For ring3_disk_end.
   */
  uint64_t tag;
  /*
   The first block.
   */
  uint64_t lba;
  /*
   Where its bytes lie, in the memory that the disk was made with, in one piece; NULL if there
   are none.
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
 Takes the card from whoever uses it, and ends the handle.

 # Safety
 `card` was made and not closed, or is NULL.
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
 Ends the handle, and takes the disk from whoever uses it. Requests that have not ended are lost
 to their clients.

 # Safety
 `disk` was made and not closed, or is NULL.
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
 Gives the bytes back. The device must be done with them.

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
