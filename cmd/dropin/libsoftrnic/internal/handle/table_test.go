package handle

import (
	"errors"
	"math"
	"slices"
	"sync"
	"syscall"
	"testing"
)

func use(*int) error { return nil }

// TestMissing: a handle without an object gives the table's error in each call, and never an
// object.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		name    string
		missing syscall.Errno
		want    error
	}{{"default", 0, syscall.ENOENT}, {"rsockets", syscall.EBADF, syscall.EBADF}} {
		t.Run(c.name, func(t *testing.T) {
			table := Table[int]{Missing: c.missing}
			check := func(handles ...uint32) {
				t.Helper()
				for _, h := range handles {
					if p := table.Get(h); p != nil {
						t.Errorf("Get(%d) = %v", h, *p)
					}
					if err := table.Use(h, use); err != c.want {
						t.Errorf("Use(%d) = %v, want %v", h, err, c.want)
					}
					if err := table.Remove(h, use); err != c.want {
						t.Errorf("Remove(%d) = %v, want %v", h, err, c.want)
					}
					if p, ok := table.Optional(h); p != nil || ok != (h == 0) {
						t.Errorf("Optional(%d) = %v, %t", h, p, ok)
					}
				}
			}
			check(0, 1, math.MaxInt32+1, math.MaxUint32) // an empty table
			h := table.Add(new(7))
			check(0, h+1, h+1000, math.MaxInt32+1, math.MaxUint32)
			if err := table.Remove(h, use); err != nil {
				t.Fatal(err)
			}
			check(h) // stale
		})
	}
}

// TestAbove: a table has no object for the handles of an engine that had others.
func TestAbove(t *testing.T) {
	defer Above(0)
	for _, n := range []uint32{0, 1 << 24, 255 << 24} {
		Above(n)
		var table Table[int]
		h := table.Add(new(7))
		if h != n+1 {
			t.Errorf("the first handle above %#x is %#x", n, h)
		}
		if p, ok := table.Optional(0); p != nil || !ok {
			t.Errorf("Optional(0) = %v, %t", p, ok)
		}
		for _, other := range []uint32{0, 1, 1<<24 + 1, 2<<24 + 1, 255<<24 + 1, math.MaxUint32} {
			if p := table.Get(other); (p != nil) != (other == h) {
				t.Errorf("above %#x, %#x has %v", n, other, p)
			}
		}
		if err := table.Remove(h, use); err != nil {
			t.Error(err)
		}
		if err := table.Use(h, use); err != syscall.ENOENT {
			t.Errorf("Use after Remove = %v", err)
		}
	}
}

// TestReuse: as long as the table does not grow, the handle that was released first is reused
// first.
func TestReuse(t *testing.T) {
	var table Table[int]
	var handles []uint32
	for i := range 15 {
		handles = append(handles, table.Add(&i))
	}
	released := []uint32{handles[7], handles[2], handles[11]}
	for _, h := range released {
		if err := table.Remove(h, use); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range released {
		if h := table.Add(new(0)); h != want {
			t.Errorf("Add returned %d, want %d", h, want)
		}
	}
	for i, h := range handles {
		if p := table.Get(h); p == nil || *p != i && !slices.Contains(released, h) {
			t.Errorf("handle %d has %v, want object %d", h, p, i)
		}
	}
	if n := len(table.All()); n != len(handles) {
		t.Errorf("the table has %d objects, want %d", n, len(handles))
	}
}

// TestFailedRemove: an object that cannot be destroyed keeps its handle.
func TestFailedRemove(t *testing.T) {
	var table Table[int]
	h := table.Add(new(7))
	if err := table.Remove(h, func(*int) error { return syscall.EBUSY }); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Remove returned %v, want EBUSY", err)
	}
	if p := table.Get(h); p == nil || *p != 7 {
		t.Errorf("the handle has %v, want its object", p)
	}
}

// TestRemoveTwice: of two threads that destroy an object at once, none releases the handle of the
// object that gets it next.
func TestRemoveTwice(t *testing.T) {
	var table Table[int]
	h := table.Add(new(1))
	err := table.Remove(h, func(*int) error {
		if err := table.Remove(h, use); err != nil {
			t.Fatal(err)
		}
		for range 15 { // all free handles, h included
			table.Add(new(2))
		}
		return nil
	})
	if p := table.Get(h); err != nil || p == nil || *p != 2 {
		t.Errorf("Remove returned %v, and the handle has %v, want the new object", err, p)
	}
	if next := table.Add(new(3)); next == h {
		t.Errorf("handle %d was given out twice", h)
	}
}

func TestFind(t *testing.T) {
	var table Table[int]
	for i := range 100 {
		table.Add(&i)
	}
	is := func(n int) func(*int) bool { return func(p *int) bool { return *p == n } }
	for _, h := range []uint32{0, 1, 43, math.MaxUint32} {
		if p := table.Find(h, is(42)); p == nil || *p != 42 {
			t.Errorf("with handle %d: %v, want 42", h, p)
		}
		if p := table.Find(h, is(1000)); p != nil {
			t.Errorf("with handle %d: %d, want none", h, *p)
		}
	}
}

// TestConcurrent: lookups never return an object with another number than their handle's, while the
// table grows and handles are reused.
func TestConcurrent(t *testing.T) {
	type object struct{ h, closed uint32 }
	var table Table[object]
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var mine []uint32
			for i := range 2000 {
				o := new(object)
				o.h = table.Add(o)
				mine = append(mine, o.h)
				if i%3 != 0 {
					continue
				}
				h := mine[0]
				if mine = mine[1:]; table.Remove(h, func(o *object) error {
					if o.h != h || o.closed != 0 {
						t.Errorf("handle %d has object %+v", h, *o)
					}
					o.closed = h
					return nil
				}) != nil {
					t.Errorf("handle %d has no object", h)
				}
			}
			for _, h := range mine {
				if p := table.Get(h); p == nil || p.h != h {
					t.Errorf("handle %d has object %v", h, p)
				}
			}
		})
	}
	all.Go(func() {
		for h := range uint32(16000) {
			table.Get(h)
			if h%1000 == 0 {
				table.All()
			}
		}
	})
	all.Wait()
}

func BenchmarkGet(b *testing.B) {
	var table Table[int]
	h := table.Add(new(1))
	b.ReportAllocs()
	for b.Loop() {
		table.Get(h)
	}
}
