"""Performs operations of files in a directory, and prints a line for the result of each.

Arguments: two paths of the directory, each by a mount of its own, and the parts to run, or none for
all. The lines of a file system of NFS are to be those of a local one.
"""
import ctypes, errno, fcntl, mmap, os, signal, socket, stat, struct, sys, threading, time

top, top2 = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
parts = []
os.umask(0o022)


def part(f):
    parts.append(f)
    return f


def result(f, *args, **options):
    """What a call returns, or the name of its errno."""
    try:
        return f(*args, **options)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))


def say(name, value):
    if value is None:
        value = 'ok'
    elif isinstance(value, bytes):
        value = value[:60].decode('latin1')
    print(name + ': ' + ' '.join(str(value).split()), flush=True)


def check(name, f, *args, **options):
    say(name, result(f, *args, **options))


def write(path, data=b'', flags=os.O_CREAT | os.O_TRUNC, mode=0o644):
    fd = os.open(path, os.O_WRONLY | flags, mode)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def read(path, size=1 << 20):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def opened(path, flags, mode=0o644):
    os.close(os.open(path, flags, mode))


def mode(path):
    return oct(os.lstat(path).st_mode & 0o7777)


def bind(path):
    """Makes a socket: its address is short, as those of sockets have to be."""
    at = os.getcwd()
    os.chdir(os.path.dirname(path))
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.basename(path))
    finally:
        os.chdir(at)


KINDS = {
    'file': lambda p: write(p, b'data'),
    'empty': os.mkdir,
    'full': lambda p: (os.mkdir(p), write(p + '/x')),
    'link': lambda p: os.symlink('target', p),
    'fifo': os.mkfifo,
    'socket': bind,
}


def kind(path):
    """The kind of what has a name."""
    try:
        m = os.lstat(path).st_mode
    except OSError as e:
        return errno.errorcode[e.errno]
    return {stat.S_IFREG: 'file', stat.S_IFDIR: 'directory', stat.S_IFLNK: 'link', stat.S_IFIFO: 'fifo', stat.S_IFSOCK: 'socket',
            stat.S_IFCHR: 'character', stat.S_IFBLK: 'block'}[stat.S_IFMT(m)]


def kill(path):
    """Removes whatever has a name."""
    if kind(path) == 'directory':
        for name in os.listdir(path):
            kill(path + '/' + name)
        os.rmdir(path)
    elif kind(path) != 'ENOENT':
        os.unlink(path)


def user(f, *args, uid=65534, gid=65534, groups=()):
    """Calls a function as another user, and returns its result."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        try:
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            said = str(result(f, *args))
        except BaseException as e:
            said = repr(e)
        os.write(w, said.encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r, 'rb') as f:
        said = f.read().decode()
    os.waitpid(pid, 0)
    return 'ok' if said == 'None' else said


def child(f):
    """Calls a function in another process, and returns its result."""
    return user(f, uid=0, gid=0)


def soon(f):
    """Waits until something is true: NFS removes the files of closed names in the background."""
    end = time.monotonic() + 20
    while not f() and time.monotonic() < end:
        time.sleep(0.05)
    return f()


def times(name, f, *paths):
    """Says which times of files a call changes: m, c."""
    before = [os.lstat(p) for p in paths]
    time.sleep(0.03)  # more than the kernel's clock for files needs for a step
    got = result(f)
    after = [os.lstat(p) for p in paths]
    changed = ','.join(('m' if a.st_mtime_ns > b.st_mtime_ns else '') + ('c' if a.st_ctime_ns > b.st_ctime_ns else '') or '-'
                       for b, a in zip(before, after))
    say('time ' + name, changed + ('' if not isinstance(got, str) else ' ' + got))


@part
def open_(d):
    write(d + '/f', b'text')
    os.mkdir(d + '/dir')
    os.symlink('f', d + '/link')
    os.symlink('dir', d + '/dirlink')
    os.symlink('nothing', d + '/dangling')
    os.symlink('new', d + '/tonew')
    os.mkfifo(d + '/fifo')
    bind(d + '/sock')
    W, C, X, T, D, N = os.O_WRONLY, os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_DIRECTORY, os.O_NOFOLLOW
    for name, path, flags in [
            ('missing', 'no', 0), ('below a file', 'f/x', 0), ('create below a file', 'f/x', W | C), ('below nothing', 'no/x', W | C),
            ('file with slash', 'f/', 0), ('create with slash', 'new1/', W | C), ('directory to write', 'dir', W),
            ('directory with O_CREAT', 'dir', C), ('file as directory', 'f', D), ('link as directory', 'link', D),
            ('link to directory', 'dirlink', D), ('link with O_NOFOLLOW', 'link', N), ('exclusive', 'f', W | C | X),
            ('exclusive directory', 'dir', C | X), ('exclusive link', 'link', W | C | X), ('exclusive dangling link', 'dangling',
                                                                                           W | C | X),
            ('dangling link', 'dangling', 0), ('create through a link', 'tonew', W | C), ('created through a link', 'new', 0),
            ('exclusive new', 'new2', W | C | X), ('fifo without reader', 'fifo', W | os.O_NONBLOCK), ('socket', 'sock', 0),
            ('name of 255', 'n' * 255, W | C), ('name of 256', 'n' * 256, W | C), ('read a name of 256', 'n' * 256, 0),
            ('dot', '.', 0), ('create dot', '.', W | C), ('exclusive dots', '..', C | X | W), ('O_PATH', 'f', os.O_PATH),
            ('O_TMPFILE', '.', W | os.O_TMPFILE), ('O_DIRECT', 'f', os.O_DIRECT), ('O_SYNC', 'f', W | os.O_SYNC)]:
        check('open ' + name, opened, d + '/' + path, flags)
    for name in ['space ', 'new\nline', 'back\\slash', '...', 'Ümlaut', '-', '%2e%2e', ' ', 'quote"\'']:
        check('name ' + ascii(name), write, d + '/' + name, b'x')
        say('listed ' + ascii(name), name in os.listdir(d))
    latin = os.fsencode(d) + b'/\xff\xfe'
    check('name that is no UTF-8', write, latin, b'x')
    say('listed name that is no UTF-8', b'\xff\xfe' in os.listdir(os.fsencode(d)))
    say('case', (result(write, d + '/Case', b'1'), result(write, d + '/case', b'2'), read(d + '/Case')))
    check('truncating', opened, d + '/f', W | T)
    say('truncated', os.stat(d + '/f').st_size)
    write(d + '/f', b'text')
    check('truncating for reading', opened, d + '/f', T)
    say('truncated for reading', os.stat(d + '/f').st_size)
    for m in [0, 0o444, 0o200, 0o600, 0o777, 0o4755, 0o2755, 0o1644]:
        p = d + '/mode%o' % m
        fd = result(os.open, p, os.O_RDWR | C | X, m)
        say('created with mode %o' % m, mode(p))
        say('written with mode %o' % m, (os.write(fd, b'abc'), os.pread(fd, 3, 0)))
        os.fsync(fd)
        os.close(fd)
    say('mode 0 read later', read(d + '/mode0'))
    path = '/'.join([d] + ['x' * 200] * 30)
    check('path of 4096', opened, path[:4096], 0)
    check('path of 4095', opened, path[:4095], 0)


@part
def directories(d):
    for k, make in KINDS.items():
        make(d + '/' + k)
    os.symlink('empty', d + '/dirlink')
    for k in list(KINDS) + ['dirlink']:
        check('mkdir over ' + k, os.mkdir, d + '/' + k)
        check('mkdir below ' + k, os.mkdir, d + '/' + k + '/new')
        check('rmdir below ' + k, os.rmdir, d + '/' + k + '/new')
        check('rmdir of ' + k, os.rmdir, d + '/' + k)
        check('rmdir of ' + k + ' with slash', os.rmdir, d + '/' + k + '/')
    check('mkdir of a name of 256', os.mkdir, d + '/' + 'n' * 256)
    check('mkdir with slash', os.mkdir, d + '/slash/')
    check('mkdir below nothing', os.mkdir, d + '/no/x')
    check('mkdir of dot', os.mkdir, d + '/.')
    check('mkdir of dots', os.mkdir, d + '/slash/..')
    check('rmdir of dot', os.rmdir, d + '/slash/.')
    check('rmdir of dots', os.rmdir, d + '/slash/..')
    check('rmdir of nothing', os.rmdir, d + '/no')
    for m in [0, 0o700, 0o777, 0o1777, 0o2755, 0o4711]:
        os.mkdir(d + '/mode%o' % m, m)
        say('directory with mode %o' % m, mode(d + '/mode%o' % m))
    os.mkdir(d + '/group')
    os.chown(d + '/group', 0, 1234)
    os.chmod(d + '/group', 0o2775)
    os.mkdir(d + '/group/dir')
    write(d + '/group/file')
    os.mkfifo(d + '/group/fifo')
    os.symlink('x', d + '/group/link')
    say('in a directory with set-group-ID', [(n, mode(d + '/group/' + n), os.lstat(d + '/group/' + n).st_gid)
                                             for n in ['dir', 'file', 'fifo', 'link']])
    os.mkdir(d + '/n')
    links = [os.stat(d + '/n').st_nlink]
    for f in [lambda: os.mkdir(d + '/n/1'), lambda: os.mkdir(d + '/n/2'), lambda: write(d + '/n/f'), lambda: os.rmdir(d + '/n/1'),
              lambda: os.rename(d + '/n/2', d + '/two'), lambda: os.rename(d + '/two', d + '/n/two')]:
        f()
        links.append(os.stat(d + '/n').st_nlink)
    say('links of a directory', links)
    os.mkdir(d + '/gone')
    fd = os.open(d + '/gone', os.O_RDONLY)
    os.rmdir(d + '/gone')
    for name, f in [('create', lambda: opened('x', os.O_CREAT | os.O_WRONLY)), ('mkdir', lambda: os.mkdir('x')), ('list',
                                                                                                                  lambda: os.listdir('.')),
                    ('symlink', lambda: os.symlink('x', 'y'))]:
        def there():
            os.fchdir(fd)
            return f()
        say(name + ' in a removed directory', child(there))
    os.close(fd)
    deep = d
    for i in range(40):
        deep += '/%d' % i
        os.mkdir(deep)
    write(deep + '/x', b'deep')
    os.rename(d + '/0', d + '/moved')
    say('40 directories deep', read(deep.replace(d + '/0', d + '/moved') + '/x'))
    def up():
        os.chdir(d + '/moved/1/2')
        os.rename(d + '/moved/1/2', d + '/2')
        return os.path.basename(os.getcwd()), os.path.samefile('..', d), sorted(os.listdir('.'))
    say('the working directory is moved', child(up))


@part
def renames(d):
    a, b = d + '/a', d + '/b'
    for k, make in KINDS.items():
        for over in list(KINDS) + ['nothing']:
            make(a)
            if over != 'nothing':
                KINDS[over](b)
            say('rename %s over %s' % (k, over), (result(os.rename, a, b), kind(a), kind(b)))
            kill(a)
            kill(b)
    KINDS['full'](a)
    check('rename into itself', os.rename, a, a + '/b')
    check('rename over its parent', os.rename, a + '/x', a)
    check('rename of dot', os.rename, a + '/.', b)
    check('rename to dots', os.rename, a, d + '/../')
    check('rename to itself', os.rename, a, a)
    check('rename with slashes', os.rename, a + '/', b + '/')
    check('rename of nothing', os.rename, a, d + '/c')
    check('rename below nothing', os.rename, b, d + '/no/c')
    check('rename to a name of 256', os.rename, b, d + '/' + 'n' * 256)
    check('rename to a name of 255', os.rename, b, d + '/' + 'n' * 255)
    check('rename to another file system', os.rename, d + '/' + 'n' * 255, '/dev/shm/x')
    write(a, b'a')
    os.link(a, b)
    say('rename to another link of the file', (result(os.rename, a, b), kind(a), kind(b), os.stat(b).st_nlink))
    check('rename of a file with slash', os.rename, b + '/', d + '/c')
    for flags in [1, 2]:
        write(d + '/c', b'c')
        ok = libc.renameat2(-100, b.encode(), -100, (d + '/c').encode(), flags)
        say('renameat2 %d' % flags, 'ok' if ok == 0 else errno.errorcode[ctypes.get_errno()])
    inode = os.stat(b).st_ino
    os.rename(b, d + '/kept')
    say('inode after rename', os.stat(d + '/kept').st_ino == inode)
    os.mkdir(d + '/other')
    os.rename(d + '/kept', d + '/other/kept')
    say('inode in another directory', os.stat(d + '/other/kept').st_ino == inode)


@part
def links(d):
    for k, make in KINDS.items():
        p = d + '/' + k
        make(p)
        check('link to ' + k, os.link, p, p + '2', follow_symlinks=False)
        if kind(p + '2') != 'ENOENT':
            say('links of ' + k, (os.lstat(p).st_nlink, os.lstat(p + '2').st_nlink, os.lstat(p).st_ino == os.lstat(p + '2').st_ino,
                                  kind(p + '2')))
        check('link over ' + k, os.link, d + '/file', p)
        check('unlink ' + k, os.unlink, p)
        check('unlink ' + k + ' with slash', os.unlink, p + '/')
        say('after unlink of ' + k, (kind(p), os.lstat(p + '2').st_nlink if kind(p + '2') != 'ENOENT' else '-'))
        if k == 'file':
            os.rename(p + '2', p)
    check('link below nothing', os.link, d + '/file', d + '/no/x')
    check('link of nothing', os.link, d + '/no', d + '/x')
    check('link with a name of 256', os.link, d + '/empty', d + '/' + 'n' * 256)
    check('link to another file system', os.link, '/etc/passwd', d + '/x')
    check('unlink nothing', os.unlink, d + '/no')
    check('unlink below a file', os.unlink, d + '/full/x/y')
    check('unlink dot', os.unlink, d + '/.')
    write(d + '/many')
    for i in range(50):
        os.link(d + '/many', d + '/many%d' % i)
    say('51 links', os.stat(d + '/many7').st_nlink)
    os.link(d + '/many', d + '/empty/many')
    os.unlink(d + '/many')
    say('50 links', os.stat(d + '/empty/many').st_nlink)
    # Symbolic links.
    for n in [1, 255, 256, 1023, 4095, 4096]:
        p = d + '/s%d' % n
        check('symlink of %d' % n, os.symlink, ('/' + 'y' * 99) * (n // 100) + 'z' * (n % 100), p)
        if n < 4096:
            say('symlink of %d is read' % n, (len(os.readlink(p)), os.lstat(p).st_size, mode(p)))
    check('symlink of nothing', os.symlink, '', d + '/s')
    check('symlink over a file', os.symlink, 'x', d + '/many1')
    check('symlink with a name of 256', os.symlink, 'x', d + '/' + 'n' * 256)
    os.symlink(b'\xff /../ \n', d + '/odd')
    say('odd symlink', os.readlink(os.fsencode(d) + b'/odd') == b'\xff /../ \n')
    check('readlink of a file', os.readlink, d + '/many1')
    check('readlink of a directory', os.readlink, d + '/empty')
    os.symlink('loop', d + '/loop')
    check('loop', os.stat, d + '/loop')
    check('create in a loop', opened, d + '/loop', os.O_CREAT | os.O_WRONLY)
    write(d + '/c0', b'end')
    for i in range(41):
        os.symlink('c%d' % i, d + '/c%d' % (i + 1))
    check('40 symlinks', read, d + '/c40')
    check('41 symlinks', read, d + '/c41')
    check('chown of a symlink', os.lchown, d + '/c1', 12, 34)
    say('owner of a symlink', (os.lstat(d + '/c1').st_uid, os.stat(d + '/c1').st_uid))
    check('times of a symlink', os.utime, d + '/c1', ns=(10**18, 10**18 + 5), follow_symlinks=False)
    say('times of a symlink are', (os.lstat(d + '/c1').st_mtime_ns, os.stat(d + '/c1').st_mtime_ns == 10**18 + 5))


@part
def nodes(d):
    for name, m in [('fifo', stat.S_IFIFO), ('socket', stat.S_IFSOCK), ('file', stat.S_IFREG), ('character', stat.S_IFCHR),
                    ('block', stat.S_IFBLK), ('directory', stat.S_IFDIR)]:
        p = d + '/' + name
        check('mknod of ' + name, os.mknod, p, m | 0o640, os.makedev(1, 3))
        if kind(p) != 'ENOENT':
            say('mode of ' + name, (kind(p), mode(p), os.lstat(p).st_size, os.lstat(p).st_nlink))
            check('mknod over ' + name, os.mknod, p, m | 0o600, os.makedev(1, 3))
    check('mkfifo over fifo', os.mkfifo, d + '/fifo')
    check('mkfifo below nothing', os.mkfifo, d + '/no/x')
    check('mkfifo with a name of 256', os.mkfifo, d + '/' + 'n' * 256)
    check('mkfifo with mode 6777', os.mkfifo, d + '/fifo2', 0o6777)
    say('mode of fifo2', mode(d + '/fifo2'))
    def feed():
        fd = os.open(d + '/fifo', os.O_WRONLY)
        os.write(fd, b'through')
        os.close(fd)
    t = threading.Thread(target=feed)
    t.start()
    say('through a fifo', read(d + '/fifo'))
    t.join()
    os.chdir(d)
    with socket.socket(socket.AF_UNIX) as s, socket.socket(socket.AF_UNIX) as c:
        check('bind', s.bind, 'listening')
        s.listen()
        check('connect', c.connect, 'listening')
    with socket.socket(socket.AF_UNIX) as s:
        check('bind to a name in use', s.bind, 'listening')
        check('connect to one who is gone', s.connect, 'listening')
    os.chdir('/')


@part
def modes(d):
    write(d + '/f')
    os.mkdir(d + '/dir')
    for m in [0, 0o111, 0o222, 0o444, 0o555, 0o777, 0o1000, 0o2000, 0o4000, 0o7777, 0o2644, 0o2755, 0o6711, 0o640]:
        for p in ['f', 'dir']:
            os.chmod(d + '/' + p, m)
            say('chmod %o of %s' % (m, p), mode(d + '/' + p))
    os.symlink('f', d + '/link')
    os.chmod(d + '/link', 0o604)
    say('chmod of a link', (mode(d + '/f'), mode(d + '/link')))
    check('chmod of nothing', os.chmod, d + '/no', 0o600)
    check('chmod below a file', os.chmod, d + '/f/x', 0o600)
    fd = os.open(d + '/f', os.O_RDWR)
    os.fchmod(fd, 0)
    say('written after chmod 0', (os.write(fd, b'abc'), os.pread(fd, 3, 0), os.ftruncate(fd, 2), os.fstat(fd).st_size))
    os.fsync(fd)
    os.close(fd)
    for m in [0o4755, 0o6755, 0o2745, 0o2644, 0o4644]:
        for name, f in [('chown', lambda p: os.chown(p, 7, 8)), ('chown to the same', lambda p: os.chown(p, 0, 0)),
                        ('chown of nothing', lambda p: os.chown(p, -1, -1)), ('write', lambda p: write(p, b'x', 0)),
                        ('truncate', lambda p: os.truncate(p, 1))]:
            kill(d + '/s')
            write(d + '/s', b'abc')
            os.chmod(d + '/s', m)
            check('mode %o, %s' % (m, name), f, d + '/s')
            s = os.stat(d + '/s')
            say('mode %o after %s' % (m, name), (mode(d + '/s'), s.st_uid, s.st_gid))
    os.chmod(d + '/dir', 0o6755)
    os.chown(d + '/dir', 7, 8)
    say('directory after chown', mode(d + '/dir'))
    os.chown(d + '/dir', -1, 9)
    s = os.stat(d + '/dir')
    say('chown of a group', (s.st_uid, s.st_gid))
    os.chown(d + '/dir', 2**32 - 2, 2**31)
    s = os.stat(d + '/dir')
    say('chown to large numbers', (s.st_uid, s.st_gid))
    check('chown of nothing', os.chown, d + '/no', 1, 1)


@part
def touched(d):
    f, sub, g = d + '/f', d + '/sub', d + '/g'
    os.mkdir(sub)
    write(f, b'text')
    write(g)
    fd = os.open(f, os.O_RDWR)
    times('write', lambda: (os.write(fd, b'x'), os.fsync(fd)), f, d)
    times('write of nothing', lambda: (os.write(fd, b''), os.fsync(fd)), f, d)
    times('read', lambda: os.pread(fd, 4, 0), f, d)
    times('ftruncate', lambda: os.ftruncate(fd, 2), f, d)
    times('ftruncate to the same', lambda: os.ftruncate(fd, 2), f, d)
    times('truncate', lambda: os.truncate(f, 9), f, d)
    times('truncate to the same', lambda: os.truncate(f, 9), f, d)
    times('O_TRUNC', lambda: opened(f, os.O_WRONLY | os.O_TRUNC), f, d)
    times('O_TRUNC of an empty file', lambda: opened(f, os.O_WRONLY | os.O_TRUNC), f, d)
    times('O_CREAT of an existing file', lambda: opened(f, os.O_WRONLY | os.O_CREAT), f, d)
    times('O_EXCL of an existing file', lambda: opened(f, os.O_WRONLY | os.O_CREAT | os.O_EXCL), f, d)
    times('chmod', lambda: os.chmod(f, 0o600), f, d)
    times('chmod to the same', lambda: os.chmod(f, 0o600), f, d)
    times('chown', lambda: os.chown(f, 5, 5), f, d)
    times('chown to the same', lambda: os.chown(f, 5, 5), f, d)
    times('chown of nothing', lambda: os.chown(f, -1, -1), f, d)
    times('utime', lambda: os.utime(f), f, d)
    times('link', lambda: os.link(f, sub + '/l'), f, d, sub)
    times('link over a file', lambda: os.link(f, g), f, d, g)
    times('unlink', lambda: os.unlink(sub + '/l'), f, d, sub)
    times('unlink nothing', lambda: os.unlink(sub + '/l'), d, sub)
    times('rename', lambda: os.rename(f, sub + '/f'), d, sub, g)
    times('rename back', lambda: os.rename(sub + '/f', f), d, sub)
    times('renamed file', lambda: (os.rename(f, d + '/h'), os.rename(d + '/h', f)), f, d)
    times('rename to itself', lambda: os.rename(f, f), f, d)
    os.link(f, d + '/same')
    times('rename to another link', lambda: os.rename(d + '/same', f), f, d)
    os.unlink(d + '/same')
    os.link(g, sub + '/g')
    times('rename over a file', lambda: os.rename(f, sub + '/g'), d, sub, g)
    times('create', lambda: write(sub + '/new'), d, sub)
    times('exclusive create', lambda: opened(sub + '/new2', os.O_CREAT | os.O_EXCL | os.O_WRONLY), d, sub)
    times('mkdir', lambda: os.mkdir(sub + '/dir'), d, sub)
    times('mkdir over a directory', lambda: os.mkdir(sub + '/dir'), d, sub, sub + '/dir')
    times('mkdir below', lambda: os.mkdir(sub + '/dir/x'), sub, sub + '/dir')
    times('rmdir of a full directory', lambda: os.rmdir(sub + '/dir'), sub, sub + '/dir')
    times('rename of a directory', lambda: os.rename(sub + '/dir/x', d + '/x'), sub, sub + '/dir', d)
    times('rmdir', lambda: os.rmdir(sub + '/dir'), d, sub)
    times('symlink', lambda: os.symlink('x', sub + '/s'), d, sub)
    times('readlink', lambda: os.readlink(sub + '/s'), sub, sub + '/s')
    times('mkfifo', lambda: os.mkfifo(sub + '/p'), d, sub)
    times('list', lambda: os.listdir(sub), d, sub)
    os.close(fd)
    # New files have the time of now, and times that are equal.
    for k, make in KINDS.items():
        before = time.time()
        make(d + '/t' + k)
        s = os.lstat(d + '/t' + k)
        say('times of a new ' + k, (abs(s.st_mtime - before) < 30, abs(s.st_atime - before) < 30, abs(s.st_ctime - before) < 30))
    opened(d + '/x1', os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    s = os.stat(d + '/x1')
    say('times after O_EXCL', (abs(s.st_mtime - before) < 30, abs(s.st_atime - before) < 30, s.st_size, mode(d + '/x1')))


@part
def stamps(d):
    f = d + '/f'
    write(f)
    for name, a, m in [('nanoseconds', 1234567890123456789, 987654321987654321), ('0', 0, 0), ('1', 1, 1), ('2038', 2**31 * 10**9 + 7,
                                                                                                            2**31 * 10**9 + 8),
                       ('2106', (2**32 - 1) * 10**9, (2**32 - 1) * 10**9 + 999999999), ('before 1970', -10**9, -5 * 10**8),
                       ('after 2106', 2**32 * 10**9, 2**32 * 10**9 + 1)]:
        check('utime ' + name, os.utime, f, ns=(a, m))
        s = os.stat(f)
        say('times of ' + name, (s.st_atime_ns, s.st_mtime_ns))
    class timespec(ctypes.Structure):
        _fields_ = [('sec', ctypes.c_long), ('nsec', ctypes.c_long)]
    NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
    for name, a, m in [('omit, omit', OMIT, OMIT), ('omit, set', OMIT, 5), ('set, omit', 6, OMIT), ('now, omit', NOW, OMIT),
                       ('omit, now', OMIT, NOW),
                       ('now, now', NOW, NOW), ('now, set', NOW, 7), ('set, now', 8, NOW), ('out of range', 10**9, 1)]:
        os.utime(f, ns=(11 * 10**9, 12 * 10**9))
        before = os.stat(f)
        time.sleep(0.03)
        ok = libc.utimensat(-100, f.encode(), (timespec * 2)(timespec(20, a), timespec(21, m)), 0)
        s = os.stat(f)
        show = lambda t: 'now' if abs(t - time.time_ns()) < 30 * 10**9 else t
        say('utimensat ' + name, (ok, show(s.st_atime_ns), show(s.st_mtime_ns), s.st_ctime_ns > before.st_ctime_ns))
    os.mkdir(d + '/dir')
    os.utime(d + '/dir', ns=(5, 6))
    s = os.stat(d + '/dir')
    say('times of a directory', (s.st_atime_ns, s.st_mtime_ns))
    os.utime(f, ns=(11, 12))
    fd = os.open(f, os.O_RDWR)
    os.write(fd, b'x')
    os.utime(fd, ns=(13, 14))
    os.close(fd)
    say('times that were set after a write', os.stat(f).st_mtime_ns)
    os.utime(f, ns=(11, 12))
    read(f)
    time.sleep(0.03)
    say('atime after a read', os.stat(f).st_atime_ns > 11)


@part
def sizes(d):
    f = d + '/f'
    write(f, b'0123456789')
    for n in [4, 8, 0, 100000, 3]:
        os.truncate(f, n)
        data = read(f)
        say('truncate to %d' % n, (os.stat(f).st_size, data[:9], data.count(b'\0')))
    for n in [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40]:
        check('truncate to %d' % n, os.truncate, f, n)
        say('size of %d' % n, os.stat(f).st_size)
    fd = os.open(f, os.O_RDWR)
    for at in [2**31 - 2, 2**32 - 2, 2**40 - 2, 2**41]:
        os.pwrite(fd, b'over', at)
        os.fsync(fd)
        say('data at %d' % at, (os.pread(fd, 6, at - 1), os.fstat(fd).st_size))
    say('blocks of holes', os.fstat(fd).st_blocks < 1000)
    say('at the end', (os.pread(fd, 9, 2**41 + 4), os.pread(fd, 9, 2**50), os.lseek(fd, 0, os.SEEK_END)))
    for name, n in [('-1', -1), ('2^63-1', 2**63 - 1), ('2^62', 2**62)]:
        say('ftruncate to ' + name, result(os.ftruncate, fd, n) if name == '-1' else result(os.ftruncate, fd, n) in (None, 'EFBIG'))
    check('seek to -1', os.lseek, fd, -1, os.SEEK_SET)
    check('read at -1', os.pread, fd, 1, -1)
    check('write at 2^63-1', os.pwrite, fd, b'xx', 2**63 - 1)
    os.ftruncate(fd, 0)
    os.close(fd)
    fd = os.open(f, os.O_RDONLY)
    check('ftruncate of a file opened for reading', os.ftruncate, fd, 1)
    check('write to a file opened for reading', os.write, fd, b'x')
    os.close(fd)
    os.mkdir(d + '/dir')
    os.mkfifo(d + '/fifo')
    check('truncate a directory', os.truncate, d + '/dir', 0)
    check('truncate a fifo', os.truncate, d + '/fifo', 0)
    check('truncate nothing', os.truncate, d + '/no', 0)
    check('truncate below a file', os.truncate, f + '/x', 0)
    # Holes that writes leave in any order.
    fd = os.open(d + '/holes', os.O_RDWR | os.O_CREAT)
    want = bytearray(300000)
    for i in [9, 2, 7, 4, 0]:
        os.pwrite(fd, bytes([65 + i]) * 5000, i * 30001)
        want[i * 30001:i * 30001 + 5000] = bytes([65 + i]) * 5000
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    say('holes', os.pread(fd, 300000, 0) == bytes(want[:9 * 30001 + 5000]))
    os.close(fd)


@part
def ranges(d):
    fd = os.open(d + '/f', os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b'x' * 65536, 1 << 20)
    os.fsync(fd)
    for name, at, how in [('data', 0, os.SEEK_DATA), ('hole', 0, os.SEEK_HOLE), ('hole after data', 1 << 20, os.SEEK_HOLE),
                          ('data at the end', (1 << 20) + 65536, os.SEEK_DATA), ('data after the end', 1 << 21, os.SEEK_DATA)]:
        check('seek ' + name, os.lseek, fd, at, how)
    check('posix_fallocate', os.posix_fallocate, fd, 1 << 21, 4096)
    say('size after posix_fallocate', os.fstat(fd).st_size)
    for name, how, at, n in [('fallocate', 0, 3 << 20, 8192), ('fallocate that keeps the size', 1, 4 << 20, 8192), ('punch', 3,
                                                                                                                    (1 << 20) + 4096, 4096),
                             ('punch across the end', 3, (3 << 20) + 4096, 1 << 20), ('collapse', 8, 0, 4096), ('zero', 16, 1 << 20,
                                                                                                                4096), ('insert', 32, 0,
                                                                                                                        4096)]:
        ok = libc.fallocate(fd, how, ctypes.c_long(at), ctypes.c_long(n))
        say(name, (ok if ok == 0 else errno.errorcode[ctypes.get_errno()], os.fstat(fd).st_size))
    os.close(fd)
    write(d + '/from', bytes(range(256)) * 1024)
    a, b = os.open(d + '/from', os.O_RDONLY), os.open(d + '/to', os.O_RDWR | os.O_CREAT)
    check('copy_file_range', os.copy_file_range, a, b, 100000, 1000, 77)
    say('copied', (os.fstat(b).st_size, os.pread(b, 100000, 77) == os.pread(a, 100000, 1000)))
    check('copy_file_range at the end', os.copy_file_range, a, b, 1000, 256 * 1024 - 10, 0)
    check('sendfile', os.sendfile, b, a, 0, 5000)
    say('FICLONE', result(fcntl.ioctl, b, 0x40049409, a))
    os.close(a)
    os.close(b)


@part
def nameless(d):
    f = d + '/f'
    write(f, b'text')
    fd = os.open(f, os.O_RDWR)
    os.unlink(f)
    say('unlinked and open', (kind(f), os.pread(fd, 9, 0), os.pwrite(fd, b'later', 2), os.fsync(fd), os.pread(fd, 9, 0)))
    say('links of an unlinked file', os.fstat(fd).st_nlink)
    say('listing with an unlinked file', len(os.listdir(d)))
    write(f, b'another')
    say('another with its name', (os.pread(fd, 9, 0), read(f)))
    os.fchmod(fd, 0o751)
    os.ftruncate(fd, 3)
    say('changes of an unlinked file', (oct(os.fstat(fd).st_mode & 0o777), os.fstat(fd).st_size, os.stat(f).st_size))
    os.close(fd)
    say('listing after its end', soon(lambda: os.listdir(d) == ['f']))
    fd = os.open(f, os.O_RDWR)
    os.rename(f, d + '/g')
    os.pwrite(fd, b'A', 0)
    os.fsync(fd)
    say('renamed and open', (read(d + '/g'), os.fstat(fd).st_nlink))
    write(d + '/new', b'new')
    os.rename(d + '/new', d + '/g')
    say('replaced and open', (os.pread(fd, 9, 0), read(d + '/g')))
    os.close(fd)
    os.mkdir(d + '/dir')
    write(d + '/dir/x')
    fd = os.open(d + '/dir/x', os.O_RDWR)
    os.unlink(d + '/dir/x')
    check('rmdir with an unlinked open file', os.rmdir, d + '/dir')
    os.close(fd)
    say('rmdir after its end', soon(lambda: result(os.rmdir, d + '/dir') == 'ENOENT'))
    write(f, b'text')
    os.link(f, d + '/l')
    fd = os.open(f, os.O_RDWR)
    os.unlink(f)
    say('one of two links unlinked', (os.pread(fd, 9, 0), read(d + '/l')))
    os.close(fd)
    # Names that change hands quickly.
    for i in range(20):
        write(d + '/a', b'%d' % i)
        os.rename(d + '/a', d + '/b')
        os.link(d + '/b', d + '/c')
        os.unlink(d + '/b')
        os.rename(d + '/c', d + '/a')
        os.unlink(d + '/a')
    say('names that change hands', sorted(os.listdir(d)))


@part
def clients(d):
    e = d.replace(top, top2, 1)
    os.listdir(e)
    for i in range(4):
        write((d, e)[i % 2] + '/log', b'%d' % i, os.O_CREAT | os.O_APPEND)
    say('appended in turn', (read(d + '/log'), read(e + '/log')))
    fd1, fd2 = os.open(d + '/ap', os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(d + '/ap', os.O_WRONLY | os.O_APPEND)
    for i in range(6):
        os.write((fd1, fd2)[i % 2], b'%d' % i)
    os.close(fd1)
    os.close(fd2)
    say('appended by two of one client', read(d + '/ap'))
    for what, make in [('O_EXCL', lambda p: opened(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY)), ('mkdir', os.mkdir),
                       ('link', lambda p: os.link(os.path.dirname(p) + '/log', p)), ('symlink', lambda p: os.symlink('x', p)),
                       ('mkfifo', os.mkfifo)]:
        won = []
        def race(at):
            for i in range(20):
                won.append((i, result(make, '%s/%s%d' % (at, what, i))))
        threads = [threading.Thread(target=race, args=(at,)) for at in (d, e)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        say('race of ' + what, sorted({(sum(r is None for j, r in won if j == i), sum(r == 'EEXIST' for j,
                                                                                      r in won if j == i)) for i in range(20)}))
    for i in range(20):
        write(d + '/r%d' % i)
    gone = []
    def remove(at):
        for i in range(20):
            gone.append((i, result(os.unlink, '%s/r%d' % (at, i))))
    threads = [threading.Thread(target=remove, args=(at,)) for at in (d, e)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    say('race of unlink', sorted({(sum(r is None for j, r in gone if j == i), sum(r == 'ENOENT' for j,
                                                                                  r in gone if j == i)) for i in range(20)}))
    write(d + '/f', b'first')
    say('seen by the other', read(e + '/f'))
    write(e + '/f', b'second')
    say('seen by the first', read(d + '/f'))
    write(e + '/new', b'third')
    os.rename(e + '/new', e + '/f')
    say('replaced by the other', read(d + '/f'))
    os.rename(e + '/f', e + '/g')
    check('renamed by the other', read, d + '/f')
    os.unlink(e + '/g')
    check('removed by the other', read, d + '/g')
    check('exclusive after removal by the other', opened, d + '/g', os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.mkdir(d + '/dir')
    write(e + '/dir/x', b'in')
    check('rmdir of what the other has filled', os.rmdir, d + '/dir')
    os.unlink(e + '/dir/x')
    os.rmdir(e + '/dir')
    check('create in what the other has removed', write, d + '/dir/y')
    check('mkdir of what the other has removed', os.mkdir, d + '/dir')
    write(d + '/held', b'held')
    fd = os.open(d + '/held', os.O_RDONLY)
    os.unlink(e + '/held')
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    check('read what the other has removed', os.pread, fd, 4, 0)
    check('stat of what the other has removed', lambda: os.fstat(fd).st_nlink)
    os.close(fd)
    write(d + '/locked', b'x' * 100)
    lock_of_both(d, e)


def lock_of_both(d, e):
    a = os.open(d + '/locked', os.O_RDWR)
    fcntl.lockf(a, fcntl.LOCK_EX, 10, 5)
    def other(how, n, at):
        def f():
            b = os.open(e + '/locked', os.O_RDWR)
            return fcntl.lockf(b, how | fcntl.LOCK_NB, n, at)
        return f
    say('bytes that the other has locked', child(other(fcntl.LOCK_EX, 10, 14)))
    say('bytes beside them', child(other(fcntl.LOCK_EX, 10, 15)))
    os.close(a)
    a = os.open(d + '/locked', os.O_RDWR)
    fcntl.flock(a, fcntl.LOCK_EX)
    def whole():
        b = os.open(e + '/locked', os.O_RDWR)
        return fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    say('flock of what the other has', child(whole))
    os.close(a)
    say('flock after its end', child(whole))


@part
def locks(d):
    p = d + '/f'
    write(p, b'x' * 100)
    fd = os.open(p, os.O_RDWR)
    def tries(how, n, at=0, flags=os.O_RDWR):
        def f():
            other = os.open(p, flags)
            return fcntl.lockf(other, how | fcntl.LOCK_NB, n, at)
        return child(f)
    X, S, U = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN
    fcntl.lockf(fd, X, 10, 20)
    say('locked', [tries(X, 10, 20), tries(S, 1, 29), tries(X, 1, 30), tries(X, 20, 0), tries(X, 0, 0)])
    fcntl.lockf(fd, U, 2, 24)
    say('unlocked in the middle', [tries(X, 2, 24), tries(X, 1, 23), tries(X, 1, 26)])
    fcntl.lockf(fd, S, 10, 20)
    say('shared', [tries(S, 10, 20), tries(X, 10, 20)])
    query = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
    def asks():
        other = os.open(p, os.O_RDWR)
        return struct.unpack('hhqqi4x', fcntl.fcntl(other, fcntl.F_GETLK, query))[:4]
    say('F_GETLK', child(asks))
    os.close(os.open(p, os.O_RDONLY))
    say('after another close', tries(X, 10, 20))
    fcntl.lockf(fd, X, 0, 90)
    say('locked to the end', [tries(X, 1, 2**40), tries(X, 1, 89)])
    os.close(fd)
    fd = os.open(p, os.O_RDONLY)
    check('exclusive lock of a file opened for reading', fcntl.lockf, fd, X | fcntl.LOCK_NB)
    check('shared lock of a file opened for reading', fcntl.lockf, fd, S | fcntl.LOCK_NB)
    os.close(fd)
    fd, fd2 = os.open(p, os.O_RDWR), os.open(p, os.O_RDWR)
    check('flock', fcntl.flock, fd, X)
    check('flock by another description', fcntl.flock, fd2, X | fcntl.LOCK_NB)
    check('shared flock by another description', fcntl.flock, fd2, S | fcntl.LOCK_NB)
    check('flock made shared', fcntl.flock, fd, S)
    check('shared flock then', fcntl.flock, fd2, S | fcntl.LOCK_NB)
    fcntl.flock(fd2, U)
    fcntl.flock(fd, U)
    own = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 10, 0)
    check('lock of a description', lambda: fcntl.fcntl(fd, 37, own) and None)
    check('the same by another description', lambda: fcntl.fcntl(fd2, 37, own) and None)
    os.close(fd)
    check('after its close', lambda: fcntl.fcntl(fd2, 37, own) and None)
    os.close(fd2)
    # One waits for the other.
    fd = os.open(p, os.O_RDWR)
    fcntl.lockf(fd, X)
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        other = os.open(p, os.O_RDWR)
        os.write(w, b'w')
        fcntl.lockf(other, X)
        os.write(w, b'l')
        os._exit(0)
    said = os.read(r, 1)
    os.pwrite(fd, b'y', 0)
    fcntl.lockf(fd, U)
    say('one waits for a lock', said + os.read(r, 1))
    os.waitpid(pid, 0)
    os.close(fd)


@part
def listings(d):
    say('an empty directory', os.listdir(d))
    for k, make in KINDS.items():
        make(d + '/' + k)
    def type_(entry):
        return 'link' if entry.is_symlink() else 'directory' if entry.is_dir() else 'file' if entry.is_file() else 'other'
    with os.scandir(d) as entries:
        say('types in a listing', sorted((e.name, type_(e), e.inode() == os.lstat(e.path).st_ino) for e in entries))
    check('list of a file', os.listdir, d + '/file')
    check('list of nothing', os.listdir, d + '/no')
    # Names come and go during a listing: the others are there, once each. Long names, so that it
    # takes several calls.
    os.mkdir(d + '/many')
    names = {'%03d' % i + 'n' * 220 for i in range(300)}
    for n in names:
        opened(d + '/many/' + n, os.O_CREAT | os.O_WRONLY)
    say('300 names', len(os.listdir(d + '/many')))
    for what, change in [('created', lambda i: opened(d + '/many/new%d' % i, os.O_CREAT | os.O_WRONLY)),
                         ('removed', lambda i: os.unlink(d + '/many/new%d' % i)),
                         ('renamed', lambda i: os.rename(d + '/many/ren%d' % i, d + '/many/named%d' % i))]:
        if what == 'renamed':
            for i in range(30):
                opened(d + '/many/ren%d' % i, os.O_CREAT | os.O_WRONLY)
        got, i = [], 0
        with os.scandir(d + '/many') as entries:
            for entry in entries:
                got.append(entry.name)
                if len(got) % 20 == 0:
                    result(change, i)
                    i += 1
        got = [n for n in got if n in names]
        say('listing while names are ' + what, (len(got), len(set(got))))
    with os.scandir(d + '/many') as entries:
        for entry in entries:
            os.unlink(entry.path)
    left = os.listdir(d + '/many')
    for n in left:
        os.unlink(d + '/many/' + n)
    say('removed while listed', len(left))
    check('and its directory', os.rmdir, d + '/many')


@part
def rights(d):
    os.mkdir(d + '/open')
    os.chmod(d + '/open', 0o777)
    os.mkdir(d + '/closed', 0o755)
    os.mkdir(d + '/secret', 0o700)
    os.mkdir(d + '/blind', 0o711)
    os.mkdir(d + '/nosearch', 0o744)
    os.mkdir(d + '/sticky')
    os.chmod(d + '/sticky', 0o1777)
    os.mkdir(d + '/group')
    os.chown(d + '/group', 0, 4321)
    os.chmod(d + '/group', 0o770)
    for n in ['open', 'closed', 'secret', 'blind', 'nosearch', 'sticky', 'group']:
        write(d + '/' + n + '/f', b'text')
        say('list ' + n, user(lambda: len(os.listdir(d + '/' + n))))
        say('read in ' + n, user(lambda: read(d + '/' + n + '/f')))
        say('create in ' + n, user(lambda: write(d + '/' + n + '/mine')))
        say('mkdir in ' + n, user(lambda: os.mkdir(d + '/' + n + '/dir')))
        say('unlink in ' + n, user(lambda: os.unlink(d + '/' + n + '/f')))
        say('access of ' + n, [user(lambda: os.access(d + '/' + n, a)) for a in (4, 2, 1)])
    say('create by a further group', user(lambda: write(d + '/group/theirs'), groups=[99, 4321]))
    say('create by a group', user(lambda: write(d + '/group/ours'), gid=4321))
    say('owner of a new file', user(lambda: (write(d + '/open/own'), os.stat(d + '/open/own').st_uid, os.stat(d + '/open/own').st_gid)[1:]))
    os.chown(d + '/sticky/mine', 65534, 65534) if kind(d + '/sticky/mine') == 'file' else write(d + '/sticky/mine')
    say('rename of a foreign file in a sticky directory', user(lambda: os.rename(d + '/sticky/mine', d + '/sticky/x'), uid=77))
    say('rename of an own file in a sticky directory', user(lambda: os.rename(d + '/sticky/mine', d + '/sticky/y')))
    write(d + '/open/f', b'text')
    for m in [0, 0o400, 0o444, 0o604, 0o622, 0o666, 0o755]:
        os.chmod(d + '/open/f', m)
        say('foreign file of mode %o' % m, [user(lambda: opened(d + '/open/f', a)) for a in (os.O_RDONLY, os.O_WRONLY,
                                                                                             os.O_RDWR | os.O_TRUNC)] +
            [user(lambda: os.access(d + '/open/f', a)) for a in (4, 2, 1)])
    os.chmod(d + '/open/f', 0o666)
    say('chmod of a foreign file', user(lambda: os.chmod(d + '/open/f', 0o777)))
    say('chown of a foreign file', user(lambda: os.chown(d + '/open/f', 65534, -1)))
    say('utime of a foreign file', user(lambda: os.utime(d + '/open/f', ns=(1, 1))))
    say('utime now of a foreign file', user(lambda: os.utime(d + '/open/f')))
    say('truncate of a foreign file', user(lambda: os.truncate(d + '/open/f', 1)))
    write(d + '/open/mine')
    os.chown(d + '/open/mine', 65534, 65534)
    os.chmod(d + '/open/mine', 0o644)
    say('chmod of an own file', user(lambda: (os.chmod(d + '/open/mine', 0o4640), mode(d + '/open/mine'))))
    say('chown of an own file', user(lambda: os.chown(d + '/open/mine', 0, -1)))
    say('chgrp to an own group', user(lambda: os.chown(d + '/open/mine', -1, 500), groups=[500]))
    say('chgrp to a foreign group', user(lambda: os.chown(d + '/open/mine', -1, 501), groups=[500]))
    os.chmod(d + '/open/mine', 0o4777)
    say('write to a file with set-user-ID', user(lambda: (write(d + '/open/mine', b'x', 0), mode(d + '/open/mine'))))
    os.chmod(d + '/open/mine', 0o2777)
    say('truncate a file with set-group-ID', user(lambda: (os.truncate(d + '/open/mine', 0), mode(d + '/open/mine'))))
    say('set-group-ID of a foreign group', user(lambda: (os.chmod(d + '/open/mine', 0o2755), mode(d + '/open/mine'))))
    os.chmod(d + '/open/mine', 0)
    say('an own file of mode 0', user(lambda: opened(d + '/open/mine', os.O_RDONLY)))
    say('create with mode 0444 and write', user(lambda: write(d + '/open/r', b'text', os.O_CREAT | os.O_EXCL, 0o444)))
    def kept():
        fd = os.open(d + '/open/kept', os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(fd, 0)
        os.write(fd, b'after')
        os.fsync(fd)
        return os.pread(fd, 9, 0)
    say('own file that is closed while open', user(kept))
    write(d + '/open/script', b'#!/bin/sh\necho ran\n')
    for m in [0o644, 0o755, 0o711]:
        os.chmod(d + '/open/script', m)
        say('execute mode %o' % m, user(lambda: os.popen(d + '/open/script 2>/dev/null').read()))


@part
def maps(d):
    p = d + '/f'
    write(p, b'a' * 10000)
    fd = os.open(p, os.O_RDWR)
    m = mmap.mmap(fd, 10000)
    m[5000:5005] = b'MAPPED'[:5]
    m.flush()
    say('mapped, then read', (os.pread(fd, 7, 4999), read(p)[4999:5006]))
    os.pwrite(fd, b'WRITTEN', 9000)
    say('written, then mapped', m[8999:9008])
    os.ftruncate(fd, 20000)
    os.pwrite(fd, b'end', 19997)
    m.close()
    m = mmap.mmap(fd, 20000, access=mmap.ACCESS_COPY)
    m[0:4] = b'MINE'
    say('private', (m[:5], os.pread(fd, 5, 0), m[19996:]))
    m.close()
    os.close(fd)
    e = d.replace(top, top2, 1)
    say('mapped, then read by the other', read(e + '/f')[4999:5006])
    fd = os.open(p, os.O_RDWR)
    m = mmap.mmap(fd, 20000)
    m[100:103] = b'xyz'
    m.close()
    os.close(fd)
    os.sync()
    say('after sync', read(e + '/f')[99:104])
    write(d + '/busybox', read('/bin/busybox', 1 << 24), mode=0o755)
    say('a program', child(lambda: os.popen(d + '/busybox echo runs').read()))
    def direct():
        fd = os.open(d + '/direct', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        m = mmap.mmap(-1, 8192)
        m[:] = b'd' * 8192
        got = os.write(fd, m), os.preadv(fd, [m], 4096)
        os.close(fd)
        return got
    check('direct', direct)


@part
def limits(d):
    s = os.statvfs(d)
    say('statvfs', (s.f_namemax, s.f_blocks > 0, s.f_blocks >= s.f_bfree >= s.f_bavail, s.f_flag & os.ST_RDONLY))
    for name in ['PC_NAME_MAX', 'PC_PATH_MAX', 'PC_NO_TRUNC', 'PC_CHOWN_RESTRICTED', 'PC_PIPE_BUF']:
        check(name, os.pathconf, d, name)
    say('PC_LINK_MAX', os.pathconf(d, 'PC_LINK_MAX') > 100)
    write(d + '/f')
    for name in ['user.x', 'trusted.x', 'security.x', 'system.posix_acl_access', 'odd.x']:
        check('setxattr ' + name, os.setxattr, d + '/f', name, b'v')
        check('getxattr ' + name, os.getxattr, d + '/f', name)
    check('listxattr', os.listxattr, d + '/f')
    fd = os.open(d, os.O_RDONLY)
    check('fsync of a directory', os.fsync, fd)
    check('read of a directory', os.read, fd, 10)
    os.close(fd)
    say('device', os.stat(d).st_dev == os.stat(d + '/f').st_dev)


signal.alarm(900)
for p in parts:
    name = p.__name__.rstrip('_')
    if sys.argv[3:] and name not in sys.argv[3:]:
        continue
    began = time.monotonic()
    at = top + '/' + name
    os.mkdir(at, 0o755)
    try:
        p(at)
    except BaseException as e:
        import traceback
        say('BROKEN ' + name, repr(traceback.format_exc()[-300:]))
        os.chdir('/')
    print('%s %.2f' % (name, time.monotonic() - began), file=sys.stderr)
