package nvme

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"syscall"

	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// size is a number of bytes as the value of a flag, with or without a unit.
type size int64

var units = map[string]int{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *size) UnmarshalText(text []byte) error {
	digits := strings.TrimRight(strings.TrimSuffix(strings.ToUpper(string(text)), "IB"), "KMGT")
	shift, ok := units[strings.TrimSuffix(strings.ToUpper(string(text)), "IB")[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n < 1 || n > math.MaxInt64>>shift {
		return fmt.Errorf("%q is not a size: must be like 4096, 512M or 10G", text)
	}
	*s = size(n << shift)
	return nil
}

// checkMemory returns an error if so many bytes are more than a process can have.
func (s size) checkMemory() error {
	if s > maxMemory {
		return fmt.Errorf("%d bytes of memory: must be %d at most on this machine", s, maxMemory)
	}
	return nil
}

// maxMemory is half the address space with 32 bits, and a third of what it can be with 64.
var maxMemory = min(size(math.MaxInt/2), 1<<46)

const (
	namespaceForms = "FILE[,size=SIZE][,block=BYTES][,ro] or memory,size=SIZE[,block=BYTES]"
	inMemory       = "memory" // as FILE; ./memory is a file of that name
)

// namespace is the value of --namespace.
type namespace struct {
	file     string
	size     size
	block    int
	readOnly bool
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *namespace) UnmarshalText(text []byte) error {
	file, rest, more := strings.Cut(string(text), ",")
	*n = namespace{file: file}
	for more {
		var option string
		option, rest, more = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(option, "=")
		switch {
		case key == "size":
			if err := n.size.UnmarshalText([]byte(value)); err != nil {
				return fmt.Errorf("%q: size: %w", text, err)
			}
		case key == "block":
			b, err := strconv.Atoi(value)
			if err != nil || b < 512 || b > 4096 || b&(b-1) != 0 {
				return fmt.Errorf("%q: block=%s: must be 512, 1024, 2048 or 4096", text, value)
			}
			n.block = b
		case option == "ro":
			n.readOnly = true
		default:
			return fmt.Errorf("%q has an unknown option %q: must be %s", text, option, namespaceForms)
		}
	}
	switch {
	case file == "":
		return fmt.Errorf("%q has no file: must be %s", text, namespaceForms)
	case file == inMemory && (n.size == 0 || n.readOnly):
		return fmt.Errorf("%q: must be %s", text, namespaceForms)
	case file == inMemory:
		return n.size.checkMemory()
	}
	return nil
}

// open opens the namespace. If force is set, it may be in use. closeIt closes it.
func (n *namespace) open(force bool) (ns target.Namespace, closeIt func() error, err error) {
	ns = target.Namespace{BlockSize: n.block, ReadOnly: n.readOnly}
	if n.file == inMemory {
		ns.Backend = target.NewMemory(int(n.size))
		return ns, func() error { return nil }, nil
	}
	f, err := target.OpenFile(n.file, &target.FileConfig{ReadOnly: n.readOnly, Size: int64(n.size), Force: force})
	if errors.Is(err, syscall.EBUSY) {
		err = fmt.Errorf("%w: --force serves it all the same", err)
	}
	if err != nil {
		return ns, nil, err
	}
	ns.Backend = f
	return ns, f.Close, nil
}
