package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The disk's file is in a file system of a process of its own, which asks this one for the content.
// Whoever writes to the disk waits in the kernel, where it cannot be killed, until the file system
// answers. A test that ended meanwhile, with the file system in its own process, would wait for
// itself. So the kernel kills the process with the test. That answers all requests with an error,
// and ends the file system's mount, which only the process has.

// Environment variables of the process.
const (
	serveAt   = "SOFTRNIC_POWERCUT_DIR" // where the file system is mounted
	serveSize = "SOFTRNIC_POWERCUT_SIZE"
)

// The process is the program of the test.
func init() {
	if dir := os.Getenv(serveAt); dir != "" {
		fmt.Fprintln(os.Stderr, serveFile(dir))
		os.Exit(1)
	}
}

const imageName = "disk" // of the file

// serve starts the process, until the end of the test, and returns the name of the file.
func (d *Disk) serve(t testing.TB) (image string, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer func() { _ = far.Close() }()
	conn, err := net.FileConn(near)
	if err = errors.Join(err, near.Close()); err != nil {
		return "", err
	}
	ready := make(chan struct{})
	server := rpc.NewServer()
	if err := server.RegisterName("Disk", &requests{d, ready}); err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := t.TempDir()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), serveAt+"="+dir, serveSize+"="+strconv.Itoa(len(d.content)))
	cmd.ExtraFiles = []*os.File{far}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // with which the process ends
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		_ = conn.Close()
		return "", err
	}
	go server.ServeConn(conn) // until the process ends
	d.server = cmd.Process
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	select {
	case <-ready:
		return filepath.Join(fmt.Sprintf("/proc/%d/root", cmd.Process.Pid), dir, imageName), nil
	case <-ended:
		return "", errors.New(stderr.String())
	}
}

// requests are those of the process, as net/rpc wants them.
type requests struct {
	d     *Disk
	ready chan struct{}
}

// Ready says that the file is there.
func (r *requests) Ready(_ struct{}, _ *struct{}) error {
	close(r.ready)
	return nil
}

// Read reads bytes from and to.
func (r *requests) Read(span [2]int, data *[]byte) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	size := len(r.d.content)
	*data = bytes.Clone(r.d.content[min(span[0], size):min(span[1], size)])
	return nil
}

func (r *requests) Write(w struct {
	Off  int
	Data []byte
}, _ *struct{}) error {
	r.d.write(w.Off, w.Data)
	return nil
}

func (r *requests) Flush(_ struct{}, _ *struct{}) error {
	r.d.flush()
	return nil
}

// file is the only one of the file system. The kernel keeps no writes back, so that it calls for
// each.
type file struct {
	fs.Inode
	disk *rpc.Client
	size int
}

// serveFile serves the file until it is unmounted.
func serveFile(dir string) error {
	size, err := strconv.Atoi(os.Getenv(serveSize))
	if err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(3, "requests"))
	if err != nil {
		return err
	}
	f := &file{disk: rpc.NewClient(conn), size: size}
	root := new(fs.Inode)
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 128 << 10, SingleThreaded: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild(imageName, root.NewPersistentInode(ctx, f, fs.StableAttr{Mode: unix.S_IFREG}), false)
		},
	})
	if err != nil {
		return err
	}
	if f.do("Disk.Ready", struct{}{}, nil) == fs.OK {
		server.Wait()
	}
	return errors.New("the file system has ended")
}

// do asks the process of the test.
func (f *file) do(method string, args, reply any) syscall.Errno {
	if f.disk.Call(method, args, reply) != nil {
		return unix.EIO
	}
	return fs.OK
}

// Getattr implements fs.NodeGetattrer.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blksize = 0o600, uint64(f.size), physical
	return fs.OK
}

// Statfs implements fs.NodeStatfser. Without it a loop device has no discards.
func (f *file) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	out.Blocks, out.Bsize, out.Frsize, out.NameLen = uint64(f.size/physical), physical, physical, 255
	return fs.OK
}

// Open implements fs.NodeOpener.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, 0, fs.OK
}

// Read implements fs.NodeReader.
func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	var data []byte
	errno := f.do("Disk.Read", [2]int{int(off), int(off) + len(dest)}, &data)
	return fuse.ReadResultData(data), errno
}

// Write implements fs.NodeWriter.
func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	return uint32(len(data)), f.do("Disk.Write", struct {
		Off  int
		Data []byte
	}{int(off), data}, nil)
}

// Allocate implements fs.NodeAllocater, for holes and zeros.
func (f *file) Allocate(ctx context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return unix.EOPNOTSUPP
	}
	_, errno := f.Write(ctx, nil, make([]byte, size), int64(off))
	return errno
}

// Fsync implements fs.NodeFsyncer.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return f.do("Disk.Flush", struct{}{}, nil)
}
