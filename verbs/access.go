package verbs

// Access is the set of operations that are allowed on a memory region, or through a QP
// (ibv_access_flags, same values). Local reads are always allowed.
type Access uint32

const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessMWBind          Access = 1 << 4  // allows memory windows to be bound to the region
	AccessZeroBased       Access = 1 << 5  // addresses count from the region's first byte
	AccessOnDemand        Access = 1 << 6  // has no effect: every region supports on-demand paging
	AccessHugeTLB         Access = 1 << 7  // has no effect
	AccessFlushGlobal     Access = 1 << 8  // FLUSH with FlushGlobal
	AccessFlushPersistent Access = 1 << 9  // FLUSH with FlushPersistent; only for regions of a file
	AccessRelaxedOrdering Access = 1 << 20 // has no effect

	// Devices that do not support these bits ignore them (IBV_ACCESS_OPTIONAL_RANGE).
	accessOptional = Access(0x3ff00000)
	accessKnown    = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind |
		AccessZeroBased | AccessOnDemand | AccessHugeTLB | accessFlush | accessOptional
	accessFlush  = AccessFlushGlobal | AccessFlushPersistent
	accessQP     = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | accessFlush
	accessRemote = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

var accessNames = []string{0: "LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED",
	"ON_DEMAND", "HUGETLB", "FLUSH_GLOBAL", "FLUSH_PERSISTENT", 20: "RELAXED_ORDERING"}

// String returns the ibverbs names without IBV_ACCESS_, joined by "|".
func (a Access) String() string { return flags(accessNames, uint32(a)) }
