package nvme

import (
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// file is a file whose calls fail, and which notes them.
type file struct {
	calls       []string
	sync, close error
}

func (f *file) Write(p []byte) (int, error) { f.calls = append(f.calls, string(p)); return len(p), nil }
func (f *file) Sync() error                 { f.calls = append(f.calls, "sync"); return f.sync }
func (f *file) Close() error                { f.calls = append(f.calls, "close"); return f.close }

// A file that is written is on its disk, and an error of each step is reported.
func TestStore(t *testing.T) {
	full, quota, broken := syscall.ENOSPC, errors.New("quota exceeded"), errors.New("the copy ends")
	for _, test := range []struct {
		name              string
		fill, sync, close error
		calls             string
		want              []error
	}{
		{"all is well", nil, nil, nil, "text sync close", nil},
		{"Close fails", nil, nil, quota, "text sync close", []error{quota}},
		{"Sync fails", nil, full, nil, "text sync close", []error{full}},
		{"both fail", nil, full, quota, "text sync close", []error{full, quota}},
		{"a pipe", nil, syscall.EINVAL, nil, "text sync close", nil},
		{"the copy fails", broken, nil, quota, "text close", []error{broken, quota}},
	} {
		f := &file{sync: test.sync, close: test.close}
		err := store(f, func(w io.Writer) error {
			_, err := io.WriteString(w, "text")
			return errors.Join(err, test.fill)
		})
		if calls := strings.Join(f.calls, " "); calls != test.calls {
			t.Errorf("%s: %s, want %s", test.name, calls, test.calls)
		}
		if (err == nil) != (test.want == nil) || slices.ContainsFunc(test.want, func(e error) bool { return !errors.Is(err, e) }) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}
