//go:build linux

package interop

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

//go:embed nvme_auth.sh
var nvmeAuthScript string

// loadNVMeAuth replaces the peer's modules of NVMe with those that have authentication. They are
// built once, into the user's cache.
func loadNVMeAuth(t *testing.T, l *nvmeLab) {
	t.Helper()
	kernel := strings.TrimSpace(l.peer.Run(t, "uname -r"))
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "softrnic-nvme-auth", kernel)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	modules := []string{"sha512_generic", "ffdhe", "nvme-common", "nvme-core", "nvme-fabrics", "nvme-rdma"}
	if _, err := os.Stat(filepath.Join(dir, "nvme-rdma.ko")); err != nil {
		script := filepath.Join(t.TempDir(), "nvme_auth.sh")
		if err := os.WriteFile(script, []byte(nvmeAuthScript), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(script, kernel)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	l.peer.Run(t, "rmmod nvme_rdma nvme_fabrics nvme_core; modprobe -a t10_pi rdma_cm")
	var insert strings.Builder
	for _, m := range modules {
		b, err := os.ReadFile(filepath.Join(dir, m+".ko"))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.peer.Put(t.Context(), "/tmp/"+m+".ko", b); err != nil {
			t.Fatal(err)
		}
		insert.WriteString("insmod /tmp/" + m + ".ko\n")
	}
	t.Cleanup(func() {
		const unload = ". /storage.sh; nvme disconnect-all; rmmod nvme_rdma nvme_fabrics nvme_core nvme_common ffdhe"
		_, _, _ = l.peer.Exec(context.Background(), unload)
	})
	l.peer.Run(t, "set -e\n"+insert.String())
}

// TestNVMeAuth: Linux's nvme-rdma and the target authenticate each other, with each hash function
// and DH group, and a host with another key or none gets no further than Connect. Debian's kernel
// has no authentication: the test builds these modules.
func TestNVMeAuth(t *testing.T) {
	gate.Long(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			const hostNQN = "nqn.2014-08.org.example:linux"
			l := newNVMeLab(t, transport, 4<<20)
			if err := l.target.Close(); err != nil {
				t.Fatal(err)
			}
			loadNVMeAuth(t, l)
			serve := func(t *testing.T, hash auth.Hash, group auth.Group) (own *target.Target, keys target.HostKeys) {
				t.Helper()
				var err error
				if keys.Host, err = auth.NewKey(hash.Size(), hash); err != nil {
					t.Fatal(err)
				}
				if keys.Controller, err = auth.NewKey(32, 0); err != nil {
					t.Fatal(err)
				}
				own, err = target.Listen(l.dev, netip.AddrPortFrom(softrnicAddr4, 4420).String(), &target.Config{
					NQN: nvmeNQN, Namespaces: []target.Namespace{{Backend: target.NewMemory(4 << 20)}},
					Keys: map[string]target.HostKeys{hostNQN: keys}, Hashes: []auth.Hash{hash}, Groups: []auth.Group{group},
				})
				if err != nil {
					t.Fatal(err)
				}
				closing(t, own.Close)
				return own, keys
			}
			connect := func(host, controller *auth.Key) string {
				s := nvmeConnect + " --hostnqn=" + hostNQN
				if host != nil {
					s += " --dhchap-secret=" + host.Secret()
				}
				if controller != nil {
					s += " --dhchap-ctrl-secret=" + controller.Secret()
				}
				return s
			}
			for _, group := range auth.Groups() {
				for _, hash := range auth.Hashes() {
					if group > auth.FFDHE2048 && hash != auth.SHA384 {
						continue
					}
					for _, mutual := range []bool{false, true} {
						t.Run(fmt.Sprintf("%v, %v, mutual %v", hash, group, mutual), func(t *testing.T) {
							own, keys := serve(t, hash, group)
							if !mutual {
								keys.Controller = nil
							}
							out := l.run(t, "dmesg -c >/dev/null\n"+connect(keys.Host, keys.Controller)+untilDisk+
								"dd if=/dev/zero of=$disk bs=64k count=16 oflag=direct 2>&1; dmesg | grep authenticated; nvme disconnect -n "+nvmeNQN)
							t.Logf("result:\n%s", out)
							if mutual != strings.Contains(out, "controller authenticated") {
								t.Error("what the kernel tells of the controller's authentication is not as configured")
							}
							awaitNoHosts(t, own)
							if s := own.Stats(); s.Writes == 0 || s.Unauthenticated != 0 {
								t.Errorf("%+v", s)
							}
						})
					}
				}
			}
			own, keys := serve(t, auth.SHA256, auth.FFDHE2048)
			other, err := auth.NewKey(32, 0)
			if err != nil {
				t.Fatal(err)
			}
			for name, command := range map[string]string{"another key": connect(other, nil), "another controller key": connect(keys.Host, other),
				"no key": connect(nil, nil)} {
				out := l.run(t, "if "+command+" 2>&1; then echo connected; fi")
				t.Logf("%s:\n%s", name, out)
				if strings.Contains(out, "connected") {
					t.Errorf("with %s the host connects", name)
				}
				awaitNoHosts(t, own)
			}
			if s := own.Stats(); s.Unauthenticated == 0 || s.Reads+s.Writes != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
