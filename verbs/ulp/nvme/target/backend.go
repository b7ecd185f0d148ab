package target

import "io"

// Backend has the content of a namespace. Several goroutines call its methods. A backend may also
// implement the other interfaces of this file.
type Backend interface {
	io.ReaderAt
	io.WriterAt
	// Size is the size in bytes. Its change is announced to hosts within a second. It must not
	// block.
	Size() int64
}

// Syncer is a Backend whose writes become durable with Sync, for Flush and ForceUnitAccess. A Sync
// that fails is the last one that a target calls: from then on it tells all hosts that data may be
// lost, until it is started with another Backend.
type Syncer interface {
	Sync() error
}

// Discarder is a Backend that can free the memory of a range. The range reads as zeros afterwards.
type Discarder interface {
	Discard(off, n int64) error
}

// Zeroer is a Backend that can write zeros faster than WriteAt. It keeps the memory allocated.
type Zeroer interface {
	Zero(off, n int64) error
}

// TryReader is a Backend some of whose reads do not block. TryReadAt reads all of p, and returns
// true with the outcome. If it would block it returns false, and ReadAt is called on another
// goroutine.
type TryReader interface {
	TryReadAt(p []byte, off int64) (done bool, err error)
}

// TryWriter is the counterpart of TryReader.
type TryWriter interface {
	TryWriteAt(p []byte, off int64) (done bool, err error)
}
