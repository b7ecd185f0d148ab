package nfs

import (
	"encoding/binary"
	"errors"
	"io"
)

// lastFragment is the bit of a record mark that the last fragment of a record has (RFC 5531 §11).
const lastFragment = 1 << 31

var errLongRecord = errors.New("the record is too long")

// recordReader reads the RPC messages of a stream, records of one or more fragments (RFC 5531 §11).
// As an io.Reader it reads the current record, to its end.
type recordReader struct {
	r     io.Reader
	limit int    // bytes of a record
	used  int    // of them, in fragments that have begun
	left  uint32 // bytes of the current fragment
	last  bool   // it is the record's last
}

// next begins a record. The one before has been read to its end.
func (r *recordReader) next() error {
	r.used, r.last = 0, false
	return r.fragment()
}

// fragment begins a fragment.
func (r *recordReader) fragment() error {
	var mark [4]byte
	if _, err := io.ReadFull(r.r, mark[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(mark[:])
	r.left, r.last = n&^lastFragment, n&lastFragment != 0
	if int64(r.left) > int64(r.limit-r.used) || r.left == 0 && !r.last {
		return errLongRecord
	}
	r.used += int(r.left)
	return nil
}

// Read implements io.Reader.
func (r *recordReader) Read(b []byte) (n int, err error) {
	for r.left == 0 {
		if r.last {
			return 0, io.EOF
		}
		if err := r.fragment(); err != nil {
			return 0, unexpected(err)
		}
	}
	n, err = r.r.Read(b[:min(int64(len(b)), int64(r.left))])
	r.left -= uint32(n)
	if n > 0 {
		err = nil // if it stays, the next call has it
	}
	return n, unexpected(err)
}

// unexpected is the error of a stream that ends within a record.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// rest appends the rest of the record to b, up to limit bytes in all. It skips what is after them.
func (r *recordReader) rest(b []byte, limit int) ([]byte, error) {
	for len(b) < limit && (r.left > 0 || !r.last) {
		at := len(b)
		b = append(b, make([]byte, max(1, min(int64(r.left), int64(limit-at))))...)
		n, err := r.Read(b[at:])
		b = b[:at+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
	}
	_, err := io.Copy(io.Discard, r)
	return b, err
}

// read returns the next record.
func (r *recordReader) read() ([]byte, error) {
	if err := r.next(); err != nil {
		return nil, err
	}
	return r.rest(nil, r.limit)
}

// recordMark returns the record mark of a message in one fragment.
func recordMark(message []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, lastFragment|uint32(len(message)))
}
