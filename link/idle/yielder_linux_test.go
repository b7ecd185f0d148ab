package idle_test

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/link/idle"
)

// TestYielder checks that with GOMAXPROCS 1 a goroutine that waits for a file runs after some
// polls. Otherwise it would run only every 10 ms, after thousands of them.
func TestYielder(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	var came atomic.Int64
	go func() {
		b := make([]byte, 1)
		for {
			if _, err := r.Read(b); err != nil {
				return
			}
			came.Add(1)
		}
	}()
	var y idle.Yielder
	defer y.Close()
	const bytes, maxPolls = 50, 100
	late := 0
	for n := range int64(bytes) {
		if _, err := w.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		polls := 0
		for ; came.Load() <= n; polls++ {
			y.EmptyPoll()
			runtime.Gosched()
		}
		if polls > maxPolls {
			late++
		}
	}
	if late > bytes/2 {
		t.Errorf("%d of %d bytes arrived after more than %d polls", late, bytes, maxPolls)
	}
}

// TestYielderClosed: a poll after Close does nothing.
func TestYielderClosed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var y idle.Yielder
	for range 20 {
		y.EmptyPoll()
	}
	y.Close()
	y.Close()
	for range 20 {
		y.EmptyPoll()
	}
}

func BenchmarkYielder(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var y idle.Yielder
	defer y.Close()
	b.ReportAllocs()
	for b.Loop() {
		y.EmptyPoll()
	}
}
