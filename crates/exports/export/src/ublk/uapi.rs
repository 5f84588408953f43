//! The kernel's ublk interface: numbers and layouts, as far as they are used here.
//!
//! # References
//! - `[UAPI]` Linux `include/uapi/linux/ublk_cmd.h`, 6.1 to 7.2
//! - `[UBLK]` Linux `Documentation/block/ublk.rst`
//! - `[IOC]` Linux `include/uapi/asm-generic/ioctl.h`: the encoding of command numbers

/// Encodes a command as an ioctl of type `u` whose argument has `size` bytes, read and written, or
/// read only. `[IOC]`
const fn encode(direction: u32, number: u8, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number as u32
}

const IOC_READ: u32 = 2;
const IOC_READ_WRITE: u32 = 3;

/// A command to `/dev/ublk-control`: its number, and whether the kernel's encoding calls it
/// read-only. `[UAPI]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admin {
    /// For messages.
    pub name: &'static str,
    number: u8,
    direction: u32,
}

const fn admin(name: &'static str, number: u8, direction: u32) -> Admin {
    Admin { name, number, direction }
}

/// The CPUs that submit to a queue.
pub const GET_QUEUE_AFFINITY: Admin = admin("GET_QUEUE_AFFINITY", 0x01, IOC_READ);
/// What the kernel knows about a device.
pub const GET_DEV_INFO: Admin = admin("GET_DEV_INFO", 0x02, IOC_READ);
/// Creates the device's identity and `/dev/ublkcN`.
pub const ADD_DEV: Admin = admin("ADD_DEV", 0x04, IOC_READ_WRITE);
/// Gives the identity back; waits until nobody refers to it.
pub const DEL_DEV: Admin = admin("DEL_DEV", 0x05, IOC_READ_WRITE);
/// Creates `/dev/ublkbN`; waits until every queue is served.
pub const START_DEV: Admin = admin("START_DEV", 0x06, IOC_READ_WRITE);
/// Removes `/dev/ublkbN`; waits for what is in flight.
pub const STOP_DEV: Admin = admin("STOP_DEV", 0x07, IOC_READ_WRITE);
/// Sets size and limits, before the start.
pub const SET_PARAMS: Admin = admin("SET_PARAMS", 0x08, IOC_READ_WRITE);
/// Size and limits that were set.
pub const GET_PARAMS: Admin = admin("GET_PARAMS", 0x09, IOC_READ);
/// Takes a device back from a server that has died: EBUSY until the kernel has seen that, and has
/// quiesced the device.
pub const START_USER_RECOVERY: Admin = admin("START_USER_RECOVERY", 0x10, IOC_READ_WRITE);
/// Goes on, by a new server; waits until every queue is served.
pub const END_USER_RECOVERY: Admin = admin("END_USER_RECOVERY", 0x11, IOC_READ_WRITE);
/// Asks for the feature bits; absent before 6.5.
pub const GET_FEATURES: Admin = admin("GET_FEATURES", 0x13, IOC_READ);
/// As DEL_DEV, without waiting; absent before 6.10.
pub const DEL_DEV_ASYNC: Admin = admin("DEL_DEV_ASYNC", 0x14, IOC_READ);
/// Tells users of a device that was started how many sectors it has from now on; feature
/// [`F_UPDATE_SIZE`].
pub const UPDATE_SIZE: Admin = admin("UPDATE_SIZE", 0x15, IOC_READ_WRITE);
/// As STOP_DEV, but refused while somebody has the device open; feature [`F_SAFE_STOP_DEV`].
pub const TRY_STOP_DEV: Admin = admin("TRY_STOP_DEV", 0x17, IOC_READ_WRITE);

/// Pins memory of the calling process, so that requests that lie in it are told by its index, which
/// is the result; feature [`F_SHMEM_ZC`]. Freezes the disk's queue.
pub const REG_BUF: Admin = admin("REG_BUF", 0x18, IOC_READ_WRITE);
/// Forgets an index, once no request lies in its memory. Freezes the disk's queue.
pub const UNREG_BUF: Admin = admin("UNREG_BUF", 0x19, IOC_READ_WRITE);

impl Admin {
    /// The number as the kernel wants it: since 6.4 encoded, before that bare.
    pub const fn opcode(self, encoded: bool) -> u32 {
        if encoded {
            encode(self.direction, self.number, size_of::<AdminCommand>())
        } else {
            self.number as u32
        }
    }
}

/// Gives a tag's buffer to the kernel and waits for a request. `[UAPI UBLK_IO_FETCH_REQ]`
pub const IO_FETCH: u8 = 0x20;
/// The same, with the result of the tag's request before. `[UAPI UBLK_IO_COMMIT_AND_FETCH_REQ]`
pub const IO_COMMIT_AND_FETCH: u8 = 0x21;

/// Lends the buffers of many tags. `[UAPI UBLK_U_IO_PREP_IO_CMDS]`
pub const IO_PREPARE_BATCH: u8 = 0x25;
/// Gives the results of many requests. `[UAPI UBLK_U_IO_COMMIT_IO_CMDS]`
pub const IO_COMMIT_BATCH: u8 = 0x26;
/// Stays, and says which tags have a request. `[UAPI UBLK_U_IO_FETCH_IO_CMDS]`
pub const IO_FETCH_BATCH: u8 = 0x27;

/// The number of a command for many tags: kernels that have them want numbers encoded.
pub const fn batch_opcode(number: u8) -> u32 {
    encode(IOC_READ_WRITE, number, size_of::<BatchHeader>())
}

/// Where a submission entry has the flags of a command, in bytes.
/// `[UAPI io_uring_sqe.uring_cmd_flags]`
pub const SQE_COMMAND_FLAGS: usize = 28;
/// A command that goes on after it has said something. `[UAPI IORING_URING_CMD_MULTISHOT]`
pub const COMMAND_MULTISHOT: u32 = 1 << 1;

/// The number of an I/O command as the kernel wants it.
pub const fn io_opcode(number: u8, encoded: bool) -> u32 {
    if encoded { encode(IOC_READ_WRITE, number, size_of::<IoCommand>()) } else { number as u32 }
}

/// [`TRY_STOP_DEV`] exists.
pub const F_SAFE_STOP_DEV: u64 = 1 << 17;

/// The device outlives its server: requests wait for the next one. What the dead one had fails.
pub const F_USER_RECOVERY: u64 = 1 << 3;
/// With [`F_USER_RECOVERY`]: what the dead server had is given to the next one.
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;

/// [`UPDATE_SIZE`] is possible; from 6.16 on.
pub const F_UPDATE_SIZE: u64 = 1 << 10;

/// Commands are for many tags at once, and no others are taken; 7.2 has it.
pub const F_BATCH_IO: u64 = 1 << 15;

/// Requests that lie in memory that was registered come without a copy; from 7.1 on.
pub const F_SHMEM_ZC: u64 = 1 << 19;

/// Not started, or stopped.
pub const STATE_DEAD: u16 = 0;
/// Serving.
pub const STATE_LIVE: u16 = 1;

/// A fetch that ended because the device stops: -ENODEV. `[UAPI UBLK_IO_RES_ABORT]`
pub const RES_ABORT: i32 = -19;
/// A fetch that ended because a request came.
pub const RES_OK: i32 = 0;

/// Most tags of a queue.
pub const MAX_QUEUE_DEPTH: u16 = 4096;

/// The largest number in `/dev/ublkcN`: minor numbers have 20 bits. `[UBLK]`
pub const MAX_ID: u32 = (1 << 20) - 1;

/// [`DeviceInfo::ublksrv_flags`] of devices that ring3 has created: "ring3" and the version of what
/// that means. The kernel keeps the field from ADD_DEV to DEL_DEV and never looks at it; other
/// servers use single low bits of it.
pub const MARK: u64 = u64::from_be_bytes(*b"\0ring3\0\x01");

/// Operations in the low byte of [`Descriptor::op_flags`].
pub mod op {
    /// Device to memory.
    pub const READ: u8 = 0;
    /// Memory to device.
    pub const WRITE: u8 = 1;
    /// Make completed writes durable.
    pub const FLUSH: u8 = 2;
    /// Content not needed any more.
    pub const DISCARD: u8 = 3;
    /// Make it read as zeroes.
    pub const WRITE_ZEROES: u8 = 5;
}

/// In [`Descriptor::op_flags`]: the write is durable when it completes.
pub const IO_F_FUA: u32 = 1 << 13;

/// In [`Descriptor::op_flags`]: the request lies in registered memory, and [`Descriptor::addr`]
/// says where ([`shared_place`]).
pub const IO_F_SHMEM_ZC: u32 = 1 << 19;

/// Index and offset of a request in registered memory. `[UAPI UBLK_SHMEM_ZC_IDX_OFF]`
#[inline]
pub const fn shared_place(addr: u64) -> (u16, u32) {
    ((addr >> 32) as u16, addr as u32)
}

/// Memory to be registered. `[UAPI ublk_shmem_buf_reg]`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SharedBuffer {
    /// Its first byte in the calling process, on a page.
    pub addr: u64,
    /// Whole pages, 4 GiB at most.
    pub len: u64,
    /// Zero: it is read and written.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<SharedBuffer>() == 24);

/// Argument of admin commands, in the last 80 bytes of a long submission entry.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AdminCommand {
    /// Which device.
    pub dev_id: u32,
    /// Which queue; all ones if the command is not about a queue.
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// Buffer, in or out by command.
    pub addr: u64,
    /// Inline argument by command.
    pub data: u64,
    /// Bytes of a device path before the buffer; for unprivileged devices only.
    pub dev_path_len: u16,
    /// Zero.
    pub pad: u16,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<AdminCommand>() == 32);

impl AdminCommand {
    /// As the bytes of a submission entry.
    pub fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.dev_id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// A device as the kernel describes it. `[UAPI ublksrv_ctrl_dev_info]`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeviceInfo {
    /// Hardware queues; the kernel lowers it to the number of CPUs.
    pub nr_hw_queues: u16,
    /// Tags per queue.
    pub queue_depth: u16,
    /// [`STATE_DEAD`], [`STATE_LIVE`], ...
    pub state: u16,
    /// Zero.
    pub pad0: u16,
    /// Bytes of each tag's buffer.
    pub max_io_buf_bytes: u32,
    /// The number in `/dev/ublkcN`; all ones lets the kernel choose.
    pub dev_id: u32,
    /// The process that serves it, or -1.
    pub ublksrv_pid: i32,
    /// Zero.
    pub pad1: u32,
    /// Feature bits.
    pub flags: u64,
    /// Kept by the kernel, not looked at; [`MARK`].
    pub ublksrv_flags: u64,
    /// Stored by the kernel.
    pub owner_uid: u32,
    /// Stored by the kernel.
    pub owner_gid: u32,
    /// Zero.
    pub reserved: [u64; 2],
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// One request, in memory that the kernel writes. `[UAPI ublksrv_io_desc]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    /// Length in units of 512 bytes.
    pub nr_sectors: u32,
    /// Start in units of 512 bytes.
    pub start_sector: u64,
    /// The tag's buffer, or with [`IO_F_SHMEM_ZC`] a place in registered memory.
    pub addr: u64,
}
const _: () = assert!(size_of::<Descriptor>() == 24);

/// Argument of I/O commands, in the last 16 bytes of a submission entry. `[UAPI ublksrv_io_cmd]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IoCommand {
    /// Queue.
    pub q_id: u16,
    /// Tag.
    pub tag: u16,
    /// Bytes done, or a negative errno.
    pub result: i32,
    /// The tag's buffer.
    pub addr: u64,
}
const _: () = assert!(size_of::<IoCommand>() == 16);

impl IoCommand {
    /// As the bytes of a submission entry.
    #[inline]
    pub fn to_bytes(self) -> [u8; 16] {
        let low =
            u64::from(self.q_id) | u64::from(self.tag) << 16 | u64::from(self.result as u32) << 32;
        (u128::from(low.to_le()) | u128::from(self.addr.to_le()) << 64).to_le_bytes()
    }
}

/// Argument of commands for many tags. `[UAPI ublk_batch_io]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BatchHeader {
    /// Queue.
    pub queue: u16,
    /// What each element has.
    pub flags: u16,
    /// How many there are.
    pub elements: u16,
    /// Bytes of each.
    pub element_bytes: u8,
    reserved: u8,
    reserved2: u64,
}
const _: () = assert!(size_of::<BatchHeader>() == 16);

/// [`BatchHeader::flags`]: elements have the address of a buffer.
/// `[UAPI UBLK_BATCH_F_HAS_BUF_ADDR]`
const BATCH_HAS_ADDR: u16 = 1 << 1;

impl BatchHeader {
    /// Of so many [`BatchElement`]s.
    #[inline]
    pub fn of(queue: u16, elements: u16) -> Self {
        Self {
            queue,
            flags: BATCH_HAS_ADDR,
            elements,
            element_bytes: size_of::<BatchElement>() as u8,
            ..Self::default()
        }
    }

    /// Of a command that says tags.
    pub fn of_tags(queue: u16) -> Self {
        Self { queue, element_bytes: size_of::<u16>() as u8, ..Self::default() }
    }

    /// As the bytes of a submission entry.
    #[inline]
    pub fn to_bytes(self) -> [u8; 16] {
        let [queue, flags, elements] = [self.queue, self.flags, self.elements].map(u64::from);
        u128::from(queue | flags << 16 | elements << 32 | u64::from(self.element_bytes) << 48)
            .to_le_bytes()
    }
}

/// One tag of a command for many: what its request has come to, and its buffer.
/// `[UAPI ublk_elem_header, with an address]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BatchElement {
    /// Tag.
    pub tag: u16,
    /// An io_uring's buffer; not used.
    pub buffer: u16,
    /// Bytes done, or a negative errno.
    pub result: i32,
    /// The tag's buffer.
    pub addr: u64,
}
const _: () = assert!(size_of::<BatchElement>() == 16);

/// [`Parameters::types`]: the basic part counts.
pub const PARAM_BASIC: u32 = 1 << 0;
/// [`Parameters::types`]: the discard part counts.
pub const PARAM_DISCARD: u32 = 1 << 1;

/// [`Parameters::attrs`]: writes are refused.
pub const ATTR_READ_ONLY: u32 = 1 << 0;
/// [`Parameters::attrs`]: it turns.
pub const ATTR_ROTATIONAL: u32 = 1 << 1;
/// [`Parameters::attrs`]: flush means something.
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// [`Parameters::attrs`]: FUA writes are understood.
pub const ATTR_FUA: u32 = 1 << 3;

/// Size and limits of a device: the basic and the discard part. `[UAPI ublk_params]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Parameters {
    /// Bytes of this structure that are filled in: [`Parameters::LEN`].
    pub len: u32,
    /// [`PARAM_BASIC`], [`PARAM_DISCARD`].
    pub types: u32,
    /// [`ATTR_READ_ONLY`] and others.
    pub attrs: u32,
    /// Smallest unit that can be addressed, 2^n bytes.
    pub logical_bs_shift: u8,
    /// Smallest unit that is written without reading, 2^n bytes.
    pub physical_bs_shift: u8,
    /// Preferred large unit, 2^n bytes.
    pub io_opt_shift: u8,
    /// Preferred small unit, 2^n bytes.
    pub io_min_shift: u8,
    /// Longest request, in 512 bytes.
    pub max_sectors: u32,
    /// No request crosses a multiple of this, in 512 bytes; 0: no such limit.
    pub chunk_sectors: u32,
    /// Size, in 512 bytes.
    pub dev_sectors: u64,
    /// Pieces of a request meet at such addresses; 0: no such limit.
    pub virt_boundary_mask: u64,
    /// Bytes from the start to the first unit of discard.
    pub discard_alignment: u32,
    /// Unit of discard in bytes; never 0.
    pub discard_granularity: u32,
    /// Longest discard, in 512 bytes.
    pub max_discard_sectors: u32,
    /// Longest write-zeroes, in 512 bytes.
    pub max_write_zeroes_sectors: u32,
    /// Ranges of one discard: 1, if there are discards.
    pub max_discard_segments: u16,
    /// Zero.
    pub reserved: u16,
}
const _: () = assert!(std::mem::offset_of!(Parameters, discard_alignment) == 40);
const _: () = assert!(size_of::<Parameters>() == 64);

impl Parameters {
    /// Bytes without the padding at the end, which newer kernels use for something else.
    pub const LEN: u32 = 60;

    /// Whether a device with the one is for its users the disk that one with the other is. Where
    /// requests are split is a matter of speed: a drive may say another boundary after an update,
    /// and a driver may know of it that the last one did not.
    pub fn describe_the_same(self, other: Self) -> bool {
        let known = |of: Self| Self {
            len: Self::LEN,
            types: of.types & (PARAM_BASIC | PARAM_DISCARD),
            chunk_sectors: 0,
            ..of
        };
        known(self) == known(other)
    }

    /// Whether a device with `now` is for its users the same disk with more sectors.
    pub fn has_grown_to(self, now: Self) -> bool {
        now.dev_sectors > self.dev_sectors
            && self.describe_the_same(Self { dev_sectors: self.dev_sectors, ..now })
    }
}

/// Where the descriptors of a queue lie in `/dev/ublkcN`, in bytes: queues stand as far apart as
/// the largest needs. `[UAPI]`
pub const fn descriptors_offset(queue: u16, page: usize) -> usize {
    queue as usize * (MAX_QUEUE_DEPTH as usize * size_of::<Descriptor>()).next_multiple_of(page)
}

/// Bytes of a queue's descriptors, in whole pages; a mapping must have exactly this length.
pub const fn descriptors_len(depth: u16, page: usize) -> usize {
    (depth as usize * size_of::<Descriptor>()).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_encoded_as_the_kernel_header_does() {
        // Printed by a C program that uses the ioctl macros of linux-libc-dev.
        assert_eq!(ADD_DEV.opcode(true), 0xc020_7504);
        assert_eq!(GET_FEATURES.opcode(true), 0x8020_7513);
        assert_eq!(REG_BUF.opcode(true), 0xc020_7518);
        assert_eq!(io_opcode(IO_COMMIT_AND_FETCH, true), 0xc010_7521);
    }

    #[test]
    fn commands_are_bare_numbers_where_the_kernel_knows_no_encoding() {
        assert_eq!(ADD_DEV.opcode(false), 4);
        assert_eq!(io_opcode(IO_FETCH, false), 0x20);
    }

    #[test]
    fn an_io_command_has_its_fields_where_the_kernel_reads_them() {
        let bytes =
            IoCommand { q_id: 0x0102, tag: 0x0304, result: -5, addr: 0x1122_3344_5566_7788 }
                .to_bytes();
        assert_eq!(bytes[0..2], 0x0102u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 0x0304u16.to_ne_bytes());
        assert_eq!(bytes[4..8], (-5i32).to_ne_bytes());
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788u64.to_ne_bytes());
    }

    #[test]
    fn parameters_that_the_kernel_has_added_to_do_not_make_another_disk_and_another_size_does() {
        let one = Parameters {
            len: Parameters::LEN,
            types: PARAM_BASIC,
            dev_sectors: 8,
            ..Parameters::default()
        };
        assert!(one.describe_the_same(Parameters { len: 112, types: PARAM_BASIC | 1 << 2, ..one }));
        assert!(!one.describe_the_same(Parameters { dev_sectors: 16, ..one }));
    }

    #[test]
    fn more_sectors_alone_make_a_disk_that_has_grown() {
        let one = Parameters {
            len: Parameters::LEN,
            types: PARAM_BASIC,
            dev_sectors: 8,
            ..Parameters::default()
        };
        let grown = Parameters { dev_sectors: 16, ..one };
        assert!(one.has_grown_to(grown) && !grown.has_grown_to(one) && !one.has_grown_to(one));
        assert!(!one.has_grown_to(Parameters { logical_bs_shift: 12, ..grown }));
    }

    #[test]
    fn descriptors_of_the_second_queue_start_after_the_largest_possible_first() {
        assert_eq!(descriptors_offset(1, 4096), 98_304);
        assert_eq!(descriptors_len(128, 4096), 4096);
    }
}
