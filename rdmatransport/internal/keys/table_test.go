package keys_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
)

// numbers returns a source of these numbers, followed by those of a seeded generator.
func numbers(first ...uint32) io.Reader {
	var b bytes.Buffer
	for _, n := range first {
		binary.Write(&b, binary.LittleEndian, n)
	}
	return io.MultiReader(&b, rand.NewChaCha8([32]byte{1}))
}

func insert(t testing.TB, table *keys.Table[int], v *int) uint32 {
	t.Helper()
	n, err := table.Insert(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestInsertGetDelete(t *testing.T) {
	const count = 100_000
	table := keys.New[int](24, nil, nil)
	values := make([]int, count)
	want := make(map[uint32]*int)
	for i := range values {
		n := insert(t, table, &values[i])
		if n == 0 || n >= 1<<24 || want[n] != nil {
			t.Fatalf("drew %#x, 0, wider than 24 bits, or twice", n)
		}
		want[n] = &values[i]
	}
	if table.Len() != count || !maps.Equal(maps.Collect(table.All()), want) {
		t.Fatal("All does not have the inserted values")
	}
	i := 0
	for n, v := range want {
		if table.Get(n) != v {
			t.Fatalf("Get(%#x) is not the inserted value", n)
		}
		if i++; i%2 == 0 {
			if table.Delete(n) != v || table.Delete(n) != nil || table.Get(n) != nil {
				t.Fatalf("%#x deleted badly", n)
			}
			delete(want, n)
		}
	}
	for range 1000 { // through a copy of the slots
		v := new(int)
		want[insert(t, table, v)] = v
	}
	if table.Len() != len(want) || !maps.Equal(maps.Collect(table.All()), want) {
		t.Fatal("All does not have the remaining values")
	}
	if table.Get(0) != nil || table.Delete(0) != nil {
		t.Fatal("0 is there")
	}
}

func TestReservedAndTakenAreDrawnAgain(t *testing.T) {
	table := keys.New[int](8, numbers(0, 1, 0x105, 5, 0x305, 7), func(n uint32) bool { return n < 2 })
	if n := insert(t, table, new(int)); n != 5 {
		t.Fatalf("drew %d, want 5: 0 and 1 are reserved", n)
	}
	if n := insert(t, table, new(int)); n != 7 {
		t.Fatalf("drew %d, want 7: 5 is taken", n)
	}
}

func TestFreedNumbersAreQuarantined(t *testing.T) {
	table := keys.New[int](10, numbers(9, 9, 11), nil)
	insert(t, table, new(int))
	table.Delete(9)
	if n := insert(t, table, new(int)); n != 11 {
		t.Fatalf("drew %d, want 11: 9 was freed just now", n)
	}
	// A number is not drawn again before a quarter of all were freed after it.
	var freed []uint32
	for range 20_000 {
		n := insert(t, table, new(int))
		if i := slices.Index(freed, n); i >= 0 && len(freed)-i < 256 {
			t.Fatalf("%d was drawn again %d frees later", n, len(freed)-i)
		}
		table.Delete(n)
		freed = append(freed, n)
		freed = freed[max(0, len(freed)-300):]
	}
}

func TestNumbersAreReused(t *testing.T) {
	// With few numbers and many values, a number that returns must map to its new value.
	table := keys.New[int](6, numbers(), nil)
	live := make(map[uint32]*int)
	for range 10_000 {
		if len(live) == 20 {
			for n, v := range live {
				if table.Delete(n) != v {
					t.Fatalf("Delete(%d) is not the inserted value", n)
				}
				delete(live, n)
				break
			}
		}
		v := new(int)
		n := insert(t, table, v)
		live[n] = v
		for n, v := range live {
			if table.Get(n) != v {
				t.Fatalf("Get(%d) is not the inserted value", n)
			}
		}
	}
}

func TestInsertErrors(t *testing.T) {
	table := keys.New[int](8, nil, nil)
	for range 128 {
		insert(t, table, new(int))
	}
	if _, err := table.Insert(new(int)); !errors.Is(err, keys.ErrFull) {
		t.Errorf("half of the numbers in use: %v", err)
	}
	table = keys.New[int](8, nil, func(uint32) bool { return true })
	if _, err := table.Insert(new(int)); !errors.Is(err, keys.ErrFull) {
		t.Errorf("all numbers reserved: %v", err)
	}
	broken := errors.New("broken")
	table = keys.New[int](8, iotest.ErrReader(broken), nil)
	if _, err := table.Insert(new(int)); !errors.Is(err, broken) {
		t.Errorf("broken source: %v", err)
	}
	if _, err := table.Insert(nil); err == nil {
		t.Error("nil was inserted")
	}
}

// TestConcurrent inserts and deletes numbers while the slots grow. Readers see the value of a
// number, or none if it is deleted. Numbers that stay are always found.
func TestConcurrent(t *testing.T) {
	table := keys.New[uint32](16, nil, nil)
	stay := make([]uint32, 100)
	add := func() (uint32, error) {
		v := new(uint32)
		n, err := table.Insert(v)
		atomic.StoreUint32(v, n)
		return n, err
	}
	for i := range stay {
		stay[i], _ = add()
	}
	var recent [64]atomic.Uint32
	var stop atomic.Bool
	var readers, writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			var mine []uint32
			for i := range 20_000 {
				n, err := add()
				if err != nil {
					t.Error(err)
					return
				}
				recent[i%len(recent)].Store(n)
				if mine = append(mine, n); len(mine) > 1000 {
					table.Delete(mine[0])
					if v := table.Get(mine[0]); v != nil && atomic.LoadUint32(v) == mine[0] {
						t.Errorf("%#x exists after Delete", mine[0])
					}
					mine = mine[1:]
				}
			}
		})
		readers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if n := stay[i%len(stay)]; table.Get(n) == nil || *table.Get(n) != n {
					t.Errorf("%#x is lost", n)
					return
				}
				n := recent[i%len(recent)].Load()
				// 0: read between Insert and the store in add, of this number's next owner.
				if v := table.Get(n); v != nil {
					if got := atomic.LoadUint32(v); got != n && got != 0 {
						t.Errorf("%#x leads to the value of %#x", n, got)
						return
					}
				}
				if i%1000 == 0 {
					for range table.All() {
					}
					runtime.Gosched()
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
}

func BenchmarkGet(b *testing.B) {
	for _, count := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			table := keys.New[int](24, nil, nil)
			known := make([]uint32, count)
			for i := range known {
				known[i] = insert(b, table, new(int))
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if table.Get(known[i]) == nil {
					b.Fatal("lost")
				}
				if i++; i == count {
					i = 0
				}
			}
		})
	}
}

func BenchmarkInsertDelete(b *testing.B) {
	table := keys.New[int](32, nil, nil)
	for range 100_000 {
		insert(b, table, new(int))
	}
	v := new(int)
	b.ReportAllocs()
	for b.Loop() {
		table.Delete(insert(b, table, v))
	}
}

func TestNewRange(t *testing.T) {
	const base, mask = 0xa30000, 0xff
	table := keys.NewRange[int](base, mask, nil, func(n uint32) bool { return n < base+16 })
	seen := map[uint32]bool{}
	for range (mask + 1) / 2 {
		n := insert(t, table, new(int))
		if n&^mask != base || n < base+16 || seen[n] {
			t.Fatalf("drew %#x: out of range, reserved, or twice", n)
		}
		seen[n] = true
	}
	if _, err := table.Insert(new(int)); !errors.Is(err, keys.ErrFull) {
		t.Errorf("half of the range is taken: %v, want ErrFull", err)
	}
	for n := range seen {
		if table.Get(n) == nil || table.Get(n&mask) != nil || table.Delete(n) == nil {
			t.Fatalf("%#x: Get or Delete is wrong", n)
		}
	}
}
