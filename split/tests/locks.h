/*
 * Stand-ins for the kernel's lock API: the names are the kernel's, for the tables to find; nothing
 * behind them.
 */
typedef struct { int taken; } spinlock_t;
struct mutex { int owner; };
extern void _raw_spin_lock(spinlock_t *lock);
extern void _raw_spin_unlock(spinlock_t *lock);
extern unsigned long _raw_spin_lock_irqsave(spinlock_t *lock);
extern void _raw_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
extern unsigned long _spin_lock_irqsave(spinlock_t *lock);
extern void _spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
extern int spin_trylock(spinlock_t *lock);
extern void mutex_lock(struct mutex *lock);
extern void mutex_unlock(struct mutex *lock);
extern int mutex_lock_interruptible(struct mutex *lock);
extern void rcu_read_lock(void);
extern void rcu_read_unlock(void);
extern void rtnl_lock(void);
extern void rtnl_unlock(void);
extern void local_irq_enable(void);
extern void local_irq_disable(void);
static inline void spin_lock(spinlock_t *lock) { _raw_spin_lock(lock); }
static inline void spin_unlock(spinlock_t *lock) { _raw_spin_unlock(lock); }
static inline void spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	_raw_spin_unlock_irqrestore(lock, flags);
}
#define spin_lock_irqsave(lock, flags) do { flags = _raw_spin_lock_irqsave(lock); } while (0)

typedef struct { spinlock_t *lock; unsigned long flags; } class_spinlock_irqsave_t;
static inline class_spinlock_irqsave_t class_spinlock_irqsave_constructor(spinlock_t *l)
{
	class_spinlock_irqsave_t t = { .lock = l }, *self = &t;
	spin_lock_irqsave(self->lock, self->flags);
	return t;
}
static inline void class_spinlock_irqsave_destructor(class_spinlock_irqsave_t *self)
{
	if (self->lock)
		spin_unlock_irqrestore(self->lock, self->flags);
}
typedef struct mutex *class_mutex_t;
static inline class_mutex_t class_mutex_constructor(struct mutex *lock)
{
	mutex_lock(lock);
	return lock;
}
static inline void class_mutex_destructor(class_mutex_t *self) { if (*self) mutex_unlock(*self); }
#define guard(name) \
	class_##name##_t scope __attribute__((cleanup(class_##name##_destructor))) = \
		class_##name##_constructor

struct device { spinlock_t lock; spinlock_t *shared; struct mutex mutex; int up; };
extern void work(int number);
