package nfs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/powercut"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// TestPowerCuts: clients change files at random, each those in a directory of its own, while the
// power fails at random moments. Then the disk has all that replies have acknowledged. What is
// unstable, or has no reply yet, may be there or not.
func TestPowerCuts(t *testing.T) {
	const perSeed = 50
	cuts := stacktest.Size(0, 15, 1000)
	if cuts == 0 {
		t.Skip("it takes seconds: .ci/run long power-cuts, or SOFTRNIC_SYSTEM=1")
	}
	all, calls := cuts, 0
	for seed := uint64(1); cuts > 0 && !t.Failed(); seed++ {
		n := min(cuts, perSeed, max(cuts/3, 5))
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { calls += powerCuts(t, seed, n) })
		cuts -= n
	}
	t.Logf("result: %d power cuts during %d calls", all-cuts, calls)
}

// powerCuts makes n cuts, and returns the number of calls meanwhile.
func powerCuts(t *testing.T, seed uint64, n int) (calls int) {
	clients := []int{4, 2, 1}[seed%3] // others sync the file system too
	all := make([]*changer, clients)
	c := powercut.NewCuts(t, 16<<20, n, seed, func() func([]byte) error {
		expected, doing := make([][]*model, clients), make([]string, clients)
		for i, p := range all {
			expected[i], doing[i] = p.possible(), p.doing
		}
		return func(image []byte) error {
			return powercut.Mounted(t, image, func(dir string) error {
				for i, trees := range expected {
					var failures []string
					for _, tree := range trees {
						if err := tree.check(filepath.Join(dir, "export", fmt.Sprint(i))); err != nil {
							failures = append(failures, err.Error())
						}
					}
					if len(failures) == len(trees) {
						return fmt.Errorf("during %q: %s", doing[i], strings.Join(failures, "; or "))
					}
				}
				return nil
			})
		}
	})
	dir := filepath.Join(c.Disk.Mount(t, "-b", []string{"1024", "4096"}[seed%2], "-I", "256"), "export")
	ok(t, os.Mkdir(dir, 0o755))
	lan := new(pipe.Switch)
	s := program.Start(t, lan, "nfs serve "+dir+" --no-portmap --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "msg=serving")
	m := newMachine(t, lan, "10.0.0.2/24")
	root := m.tcp(t, "10.0.0.1:20048").mount(t, dir)
	for i := range all {
		transport := []verbs.Transport{verbs.RoCEv2, verbs.IWARP}[i%2]
		rdma, err := rpcrdma.Dial(t.Context(), m.dev, "10.0.0.1:20049", &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS})
		ok(t, err)
		defer rdma.Close()
		p := &changer{t: t, cuts: c, client: over(rdma), random: rand.New(rand.NewPCG(seed, uint64(i+1)))}
		p.model = &model{map[int]*modelFile{top: {kind: kindDirectory, entries: map[string]int{}}}}
		p.model.nodes[top].handle = p.mkdir(t, root, fmt.Sprint(i))
		all[i] = p
	}
	c.Start()
	var running sync.WaitGroup
	for _, p := range all {
		running.Go(func() {
			for !c.Ended() && !t.Failed() {
				p.change()
			}
		})
	}
	running.Wait()
	c.Wait()
	for i, p := range all {
		calls += p.calls
		if err := p.model.check(filepath.Join(dir, fmt.Sprint(i))); err != nil {
			t.Errorf("without a cut: %v", err)
		}
	}
	s.Stop()
	if code := s.Wait(t); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, &s.Err)
	}
	return calls
}
